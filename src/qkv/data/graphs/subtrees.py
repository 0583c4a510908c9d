"""Weisfeiler–Lehman bags of graphs: hashed labels of the subtrees around the nodes (Shervashidze et al. 2011)."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.data.features.ngrams import Bag
from qkv.data.graphs.encodings import mixed, refined

_LEVELS = 2
"""Largest absolute level of a standardised feature; larger values are clipped."""
_FEW = 3
"""Maximum number of features, other than whole numbers, that each have a level; more features are projected first."""
_DIRECTIONS = 4
"""Number of random projections of many features; the signs of the projections are the levels."""


def subtrees(labels: np.ndarray, edges: np.ndarray, rounds: int, buckets: int) -> Bag:
    """Count the labels of all nodes after 0, 1, …, ``rounds`` rounds, modulo ``buckets``.

    labels (n), uint64; edges (2, E): sources and targets. The order of nodes and edges does not matter.
    """
    label_rounds = [labels]
    for _ in range(rounds):
        label_rounds.append(refined(label_rounds[-1], edges))
    ids, counts = np.unique(np.concatenate(label_rounds) % np.uint64(buckets), return_counts=True)
    return Bag(ids.astype(np.int64), counts.astype(np.float32))


def first_labels(tags: np.ndarray | None, levels: np.ndarray | None, degrees: np.ndarray) -> np.ndarray:
    """Return the labels (n), uint64, of nodes before the first round.

    A label is a hash of the tag and the levels (n, F), or of the degree if there are neither tags nor levels.
    """
    keys_of_nodes = np.zeros(len(degrees), np.uint64)
    if tags is not None:
        keys_of_nodes += mixed(tags)
    if levels is not None:
        keys = mixed(np.arange(1, levels.shape[1] + 1))
        keys_of_nodes += mixed(levels.astype(np.int64).astype(np.uint64) * np.uint64(3) ^ keys).sum(1, dtype=np.uint64)
    return mixed(keys_of_nodes if tags is not None or levels is not None else degrees)


def levels_of(features: Any, whole: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Discretise the features (n, F), a sparse matrix, to levels (n, number of levels per node).

    Features that are whole numbers are their own levels. Other features are standardised, rounded and clipped; if there
    are many, the levels are the signs of a few random projections. whole (F): True for features that are whole numbers
    in all graphs.
    """
    dense = features.toarray()
    levels, z = dense[:, whole], ((dense - mean) / deviation)[:, ~whole]
    if z.shape[1] > _FEW:
        z = np.sign(z @ np.random.default_rng(0).standard_normal((z.shape[1], _DIRECTIONS)))
    return np.concatenate((levels, np.clip(np.rint(z), -_LEVELS, _LEVELS)), 1)
