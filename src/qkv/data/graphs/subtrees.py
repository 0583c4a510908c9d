"""Weisfeiler–Lehman bags of graphs: hashed labels of the subtrees around the nodes (Shervashidze et al. 2011)."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.data.features.ngrams import Bag
from qkv.data.graphs.encodings import mixed, refined

_LEVELS = 2
"""Standard deviations from the mean, at most, that levels of a feature tell apart."""
_FEW = 3
"""Most features that are not whole numbers of which each has levels of its own."""
_DIRECTIONS = 4
"""Random directions whose signs are the levels of more features."""


def subtrees(labels: np.ndarray, edges: np.ndarray, rounds: int, buckets: int) -> Bag:
    """Labels of all nodes after 0, 1, …, ``rounds`` rounds, modulo ``buckets``, and how many nodes have each.

    labels (n), uint64; edges (2, E): sources and targets. The order of nodes and edges does not matter.
    """
    found = [labels]
    for _ in range(rounds):
        found.append(refined(found[-1], edges))
    ids, counts = np.unique(np.concatenate(found) % np.uint64(buckets), return_counts=True)
    return Bag(ids.astype(np.int64), counts.astype(np.float32))


def first_labels(tags: np.ndarray | None, levels: np.ndarray | None, degrees: np.ndarray) -> np.ndarray:
    """Labels (n), uint64, of nodes before the first round: hash of tag and levels (n, F), or of the degree if there are
    neither.
    """
    found = np.zeros(len(degrees), np.uint64)
    if tags is not None:
        found += mixed(tags)
    if levels is not None:
        keys = mixed(np.arange(1, levels.shape[1] + 1))
        found += mixed(levels.astype(np.int64).astype(np.uint64) * np.uint64(3) ^ keys).sum(1, dtype=np.uint64)
    return mixed(found if tags is not None or levels is not None else degrees)


def levels_of(features: Any, whole: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Levels (n, F) of the features (n, F), a sparse matrix: whole numbers as they are; others in units of their
    deviation from the mean, rounded, or if there are many, signs of a few projections.

    whole (F): True for features that are whole numbers in all graphs.
    """
    dense = features.toarray()
    own, z = dense[:, whole], ((dense - mean) / deviation)[:, ~whole]
    if z.shape[1] > _FEW:
        z = np.sign(z @ np.random.default_rng(0).standard_normal((z.shape[1], _DIRECTIONS)))
    return np.concatenate((own, np.clip(np.rint(z), -_LEVELS, _LEVELS)), 1)
