"""Optimal division of rows sorted by length into buckets, to minimise padding."""

from __future__ import annotations

import numpy as np

FINEST = 1024
"""Maximum number of distinct lengths considered as bucket boundaries; if there are more, a subset is used."""


def borders(lengths: np.ndarray, counts: np.ndarray, buckets: int) -> np.ndarray:
    """Return the row indices at which the second and later buckets begin, chosen to minimise padding to each bucket's
    longest row.

    Rows are sorted by length: ``counts[i]`` rows have the length ``lengths[i]``, and ``lengths`` increases. Exact by
    dynamic programming, O(buckets · lengths²), up to ``FINEST`` lengths; beyond that, only a subset of the lengths can
    be boundaries.
    """
    if not len(lengths):
        return np.zeros(0, np.int64)
    keep = np.unique(np.linspace(len(lengths) - 1, 0, min(len(lengths), FINEST)).round().astype(int))
    lengths, until = lengths[keep], np.cumsum(counts)[keep]
    before = np.concatenate(([0], until))
    # cost[i, j]: positions of a bucket of lengths i to j.
    cost = np.where(np.tri(len(lengths), k=-1, dtype=bool), np.inf, (until - before[:-1, None]) * lengths)
    best, choices = cost[0], []
    for _ in range(min(buckets, len(lengths)) - 1):
        total = best[:-1, None] + cost[1:]
        choices.append(1 + total.argmin(axis=0))
        best = total.min(axis=0)
    begins, last = [], len(lengths) - 1
    for choice in reversed(choices):
        begins.append(before[choice[last]])
        last = choice[last] - 1
    return np.array(begins[::-1], np.int64)
