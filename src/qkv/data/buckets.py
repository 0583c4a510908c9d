"""Rows of one document each, those of similar length together."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from qkv.data.batch import Batch
from qkv.data.corpus import Split
from qkv.data.layouts import Layout, lays
from qkv.data.rows import padded_rows, random
from qkv.spec import data as spec

FINEST = 1024
"""Lengths that bucket borders are chosen among; more are rounded."""


@lays(spec.LengthBuckets)
class LengthBuckets(Layout):
    """One document a row, sorted by length into ``buckets``; an epoch shuffles the rows of each bucket, and then the batches.

    A document of more than ``length`` targets goes on in further rows. One of a single token has no target, and no row.
    Batches run on from one bucket into the next, so that one batch of an epoch at most is not full.
    """

    def __init__(self, batching: spec.LengthBuckets, split: Split, batch_size: int, length: int, seed: int):
        super().__init__(batching, split, batch_size, length, seed)
        targets = np.maximum(np.diff(split.documents, append=len(split.ids)) - 1, 0)
        parts = -(-targets // length)
        document = np.repeat(np.arange(len(parts)), parts)
        offset = (np.arange(len(document)) - np.repeat(np.cumsum(parts) - parts, parts)) * length
        starts, sizes = split.documents[document] + offset, np.minimum(targets[document] - offset, length)
        by_length = np.argsort(sizes, kind="stable")
        self._starts, self._sizes = starts[by_length], sizes[by_length]
        self.num_rows = len(self._starts)
        self._borders = borders(self._sizes, batching.buckets) if self.num_rows else np.zeros(0, np.int64)
        self._plan = lru_cache(maxsize=2)(self._draw)

    @property
    def steps_per_epoch(self) -> int:
        """Batches that show every row once."""
        return -(-self.num_rows // self.batch_size)

    def _draw(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows in the order in which they fill batches, and the order of the batches."""
        generator = random(self.seed, epoch)
        rows = np.concatenate([generator.permutation(bucket) for bucket in np.split(np.arange(self.num_rows), self._borders)])
        return rows, generator.permutation(self.steps_per_epoch)

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        rows, order = self._plan(epoch)
        begin = order[place] * self.batch_size
        return self.rows(rows[begin : begin + self.batch_size])

    def rows(self, index: np.ndarray) -> Batch:
        sizes = self._sizes[index]
        return padded_rows(self.split.ids, self._starts[index], sizes, int(sizes.max()))

    def padding(self) -> float:
        """Of the first epoch."""
        rows, _ = self._plan(0)
        begins = np.arange(0, self.num_rows, self.batch_size)
        widest = np.maximum.reduceat(self._sizes[rows], begins)
        return 1 - float(self._sizes.sum() / (widest * np.diff(begins, append=self.num_rows)).sum())

    def problem(self) -> str:
        if self.num_rows:
            return ""
        return f"has {len(self.split.documents)} documents, and none of them has the two tokens that give a target"


def borders(sizes: np.ndarray, buckets: int) -> np.ndarray:
    """The rows at which a further bucket begins, so that padding each row to its bucket's longest costs least.

    ``sizes`` (rows,) in rising order. Exact by dynamic programming over the distinct lengths, in O(buckets · lengths²).
    """
    grain = -(-int(sizes[-1]) // FINEST)
    lengths, counts = np.unique(-(-sizes // grain), return_counts=True)
    before = np.concatenate(([0], np.cumsum(counts)))
    # cost[i, j]: positions of a bucket that holds lengths i to j.
    cost = np.where(np.tri(len(lengths), k=-1, dtype=bool), np.inf, (before[1:] - before[:-1, None]) * lengths)
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
