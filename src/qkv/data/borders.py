"""Where to divide rows that are sorted by length, so that little is padded."""

from __future__ import annotations

import numpy as np

FINEST = 1024
"""Lengths that bucket borders are chosen among; more are rounded."""


def borders(lengths: np.ndarray, counts: np.ndarray, buckets: int) -> np.ndarray:
    """The rows, sorted by length, at which a further bucket begins, so that padding each row to its bucket's longest costs least.

    ``counts`` rows have each of ``lengths``, which rise. Exact by dynamic programming, in O(buckets · lengths²), for up to ``FINEST``
    lengths; of more, only some are borders.
    """
    if not len(lengths):
        return np.zeros(0, np.int64)
    keep = np.unique(np.linspace(len(lengths) - 1, 0, min(len(lengths), FINEST)).round().astype(int))
    lengths, until = lengths[keep], np.cumsum(counts)[keep]
    before = np.concatenate(([0], until))
    # cost[i, j]: positions of a bucket that holds lengths i to j.
    cost = np.where(np.tri(len(lengths), k=-1, dtype=bool), np.inf, (until - before[:-1, None]) * lengths)
    best, choices = cost[0], []
    for _ in range(min(buckets, len(lengths)) - 1):
        total = best[:-1, None] + cost[1:]
        choices.append(1 + total.argmin(axis=0))
        best = total.min(axis=0)
    found, last = [], len(lengths) - 1
    for choice in reversed(choices):
        found.append(before[choice[last]])
        last = choice[last] - 1
    return np.array(found[::-1], np.int64)
