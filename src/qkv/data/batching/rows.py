"""Rows cut from the ids of one split, and random generators keyed by (seed, step)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from qkv.data.batching.batch import IGNORED, Batch
from qkv.layers.signal import Signal


def random(seed: int, step: int) -> np.random.Generator:
    """Return an independent random generator for each (seed, step): Philox keyed by both (Salmon et al. 2011)."""
    return np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, step], np.uint64)))


def windows(ids: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """Cut a window of ``length`` + 1 ids at each start, (rows, length + 1) int64.

    The first ``length`` ids are inputs, the last ``length`` ids are their next-token targets.
    """
    return ids[starts[:, None] + np.arange(length + 1)].astype(np.int64)


def full_rows(ids: np.ndarray, starts: np.ndarray, length: int) -> Batch:
    """Build a next-token batch with one row of ``length`` inputs and targets per index in ``starts``."""
    return _batch(windows(ids, starts, length))


def padded_rows(ids: np.ndarray, starts: np.ndarray, targets: np.ndarray, length: int) -> Batch:
    """Build a next-token batch with one row per index in ``starts``, padded on the right with id 0.

    A row has ``targets[row]`` <= ``length`` targets.
    """
    if (targets == length).all():
        return full_rows(ids, starts, length)
    place = np.arange(length + 1)
    rows = ids[starts[:, None] + np.minimum(place, targets[:, None])].astype(np.int64)
    padding = place[:-1] >= targets[:, None]
    batch = _batch(rows)
    batch.input.values[torch.from_numpy(padding)] = 0
    batch.targets[torch.from_numpy(padding)] = IGNORED
    return Batch.of(Signal(batch.input.values, torch.from_numpy(targets.astype(np.int64))), batch.targets)


def with_segments(batch: Batch, documents: np.ndarray, starts: np.ndarray) -> Batch:
    """Add document numbers as segments to ``batch``, so that attention can stay within documents; a target that is the
    first token of another document is ignored.

    ``documents``: index in the ids at which each document begins; ``starts``: index at which each row begins.
    """
    rows, length = batch.input.values.shape
    opens = np.zeros((rows, length + 1), np.int64)
    first = np.searchsorted(documents, starts, side="right")
    last = np.searchsorted(documents, starts + length, side="right")
    for row in range(rows):
        opens[row, documents[first[row] : last[row]] - starts[row]] = 1
    batch.targets[torch.from_numpy(opens[:, 1:] == 1)] = IGNORED
    return Batch.of(replace(batch.input, segments=torch.from_numpy(np.cumsum(opens[:, :-1], axis=1))), batch.targets)


def _batch(rows: np.ndarray) -> Batch:
    return Batch.of(torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy()))
