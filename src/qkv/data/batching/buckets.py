"""Batching with one document per row, together with documents of similar length."""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np

from qkv.data.batching.batch import Batch
from qkv.data.batching.borders import borders
from qkv.data.batching.examples import ExampleRows, filled
from qkv.data.batching.layouts import RowLayout
from qkv.data.batching.rows import padded_rows, random
from qkv.data.corpora.corpus import Split
from qkv.spec import data as spec
from qkv.spec.register import implements

_SORTED_TOGETHER = 64
"""Number of batches whose rows are sorted by length as a group under ``token_buckets``."""


@implements(spec.LengthBuckets)
class LengthBuckets(RowLayout):
    """Batching of text with one document per row: rows are sorted by length and divided into at most
    ``batching.buckets`` buckets. An epoch shuffles the rows of each bucket, then the batches.

    A document of more than ``length`` targets continues in further rows. A document of a single token has no target,
    and so no row. Batches may span two buckets, so that at most one batch of an epoch is not full.

    Rows are numbered by length: first the remainders of documents, shorter than ``length``, then the full rows. Memory:
    a few numbers per document, and four bytes per row. Separate examples are batched in the same way.
    """

    for_examples = True

    def __init__(
        self, batching: spec.LengthBuckets | spec.TokenBuckets, split: Split, batch_size: int, length: int, seed: int
    ):
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
        self._num_full = num_full
        self._plan = lru_cache(maxsize=2)(self._draw)

    @classmethod
    def epoch(
        cls, batching: spec.LengthBuckets, sizes: np.ndarray, batch_size: int, generator: np.random.Generator
    ) -> list[np.ndarray]:
        lengths, counts = np.unique(sizes, return_counts=True)
        buckets = np.split(np.argsort(sizes, kind="stable"), borders(lengths, counts, batching.buckets))
        rows = np.concatenate([generator.permutation(bucket) for bucket in buckets])
        batches = np.split(rows, range(batch_size, len(rows), batch_size))
        return [batches[i] for i in generator.permutation(len(batches))]

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return -(-self.num_rows // self.batch_size)

    @cached_property
    def _borders(self) -> np.ndarray:
        """Index of the first row of each bucket except for the first bucket."""
        sizes, counts = np.unique(self._sizes[:-1], return_counts=True)
        if self._num_full:
            sizes, counts = np.append(sizes, self.length), np.append(counts, self._num_full)
        return borders(sizes, counts, self.batching.buckets)

    def _draw(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Shuffle an epoch: (row indices in the order in which they fill batches, order of the batches)."""
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
        """Return the number of targets in each of the rows ``index``."""
        return self._sizes[np.minimum(index, len(self._ends))]

    def _stop(self, document: np.ndarray) -> np.ndarray:
        """Return, for each document index in ``document``, the position in the ids after the document's last token."""
        documents = self.split.documents
        after = document.astype(np.int64) + 1
        return np.where(after < len(documents), documents[np.minimum(after, len(documents) - 1)], len(self.split.ids))

    def padding(self) -> float:
        """Return the fraction of positions in the first epoch's batches that are padding, 0 to 1."""
        sizes = self._sizes_of(self._plan(0)[0])
        begins = np.arange(0, self.num_rows, self.batch_size)
        widest = np.maximum.reduceat(sizes, begins).astype(np.int64)
        return 1 - float(sizes.sum(dtype=np.int64) / (widest * np.diff(begins, append=self.num_rows)).sum())

    def problem(self) -> str:
        if self.num_rows:
            return ""
        return f"has {len(self.split.documents)} documents, and none has two tokens, one to read and one to predict"


@implements(spec.TokenBuckets)
class TokenBuckets(LengthBuckets):
    """Batching of text with one document per row: a batch has documents of similar length and at most ``tokens``
    positions, padding included; a longer document is a batch of its own. An epoch uses every document once.
    """

    def __init__(self, batching: spec.TokenBuckets, split: Split, batch_size: int, length: int, seed: int):
        super().__init__(batching, split, batch_size, length, seed)
        self._rows: ExampleRows | None = None

    @classmethod
    def epoch(
        cls, batching: spec.TokenBuckets, sizes: np.ndarray, batch_size: int, generator: np.random.Generator
    ) -> list[np.ndarray]:
        rows, most = generator.permutation(len(sizes)), batching.tokens
        together = _SORTED_TOGETHER * max(1, most // max(1, int(sizes.mean())))
        batches: list[np.ndarray] = []
        for begin in range(0, len(rows), together):
            some = rows[begin : begin + together]
            batches += filled(some[np.argsort(sizes[some], kind="stable")], sizes, most)
        return [batches[i] for i in generator.permutation(len(batches))]

    def batch(self, step: int) -> Batch:
        if self._rows is None:
            sizes = self._sizes_of(np.arange(self.num_rows)).astype(np.int64)
            self._rows = ExampleRows(sizes, self.batching, self.batch_size, self.seed)
        return self.rows(self._rows.of_step(step))

    def padding(self) -> float:
        self.batch(0)
        assert self._rows is not None
        return self._rows.padding()
