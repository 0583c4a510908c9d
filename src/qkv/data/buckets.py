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

    Rows are numbered by length: the ends of documents, which are shorter than ``length``, and then the full rows. A few numbers
    for each document, and four bytes for each row, are held in memory.
    """

    def __init__(self, batching: spec.LengthBuckets, split: Split, batch_size: int, length: int, seed: int):
        super().__init__(batching, split, batch_size, length, seed)
        targets = np.maximum(np.diff(split.documents, append=len(split.ids)) - 1, 0)
        full, rest = np.divmod(targets, length)
        ends = np.flatnonzero(rest).astype(np.uint32)
        self._ends = ends[np.argsort(rest[ends], kind="stable")]
        self._sizes = np.append(rest[self._ends], length).astype(np.int32)
        self._long = np.flatnonzero(full).astype(np.uint32)
        until = np.cumsum(full[self._long])
        self._before = until - full[self._long]
        num_full = int(until[-1]) if len(until) else 0
        self.num_rows = len(self._ends) + num_full
        sizes, counts = np.unique(self._sizes[:-1], return_counts=True)
        if num_full:
            sizes, counts = np.append(sizes, length), np.append(counts, num_full)
        self._borders = borders(sizes, counts, batching.buckets)
        self._plan = lru_cache(maxsize=2)(self._draw)

    @property
    def steps_per_epoch(self) -> int:
        """Batches that show every row once."""
        return -(-self.num_rows // self.batch_size)

    def _draw(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows in the order in which they fill batches, and the order of the batches."""
        generator = random(self.seed, epoch)
        rows = np.arange(self.num_rows, dtype=np.uint32)
        for bucket in np.split(rows, self._borders):
            generator.shuffle(bucket)
        return rows, generator.permutation(np.arange(self.steps_per_epoch, dtype=np.uint32))

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        rows, order = self._plan(epoch)
        begin = int(order[place]) * self.batch_size
        return self.rows(rows[begin : begin + self.batch_size].astype(np.int64))

    def rows(self, index: np.ndarray) -> Batch:
        sizes = self._sizes_of(index)
        starts = np.empty(len(index), np.int64)
        end = index < len(self._ends)
        starts[end] = self._stop(self._ends[index[end]]) - 1 - sizes[end]
        number = index[~end] - len(self._ends)
        place = np.searchsorted(self._before, number, side="right") - 1
        starts[~end] = self.split.documents[self._long[place]] + (number - self._before[place]) * self.length
        return padded_rows(self.split.ids, starts, sizes, int(sizes.max()))

    def _sizes_of(self, index: np.ndarray) -> np.ndarray:
        """How many targets each row has; those past the ends of documents are full."""
        return self._sizes[np.minimum(index, len(self._ends))]

    def _stop(self, document: np.ndarray) -> np.ndarray:
        """The position after the last of each document."""
        documents = self.split.documents
        after = document.astype(np.int64) + 1
        return np.where(after < len(documents), documents[np.minimum(after, len(documents) - 1)], len(self.split.ids))

    def padding(self) -> float:
        """Of the first epoch."""
        sizes = self._sizes_of(self._plan(0)[0])
        begins = np.arange(0, self.num_rows, self.batch_size)
        widest = np.maximum.reduceat(sizes, begins).astype(np.int64)
        return 1 - float(sizes.sum(dtype=np.int64) / (widest * np.diff(begins, append=self.num_rows)).sum())

    def problem(self) -> str:
        if self.num_rows:
            return ""
        return f"has {len(self.split.documents)} documents, and none of them has the two tokens that give a target"


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
