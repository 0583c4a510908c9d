"""Windows of fixed length, cut from running text."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from qkv.data.batching.batch import Batch
from qkv.data.batching.layouts import RowLayout
from qkv.data.batching.rows import full_rows, padded_rows, random, with_segments
from qkv.data.corpora.corpus import Split
from qkv.spec import data as spec
from qkv.spec.register import implements


@implements(spec.RandomCrops)
class RandomCrops(RowLayout):
    """Batching of text as windows at random positions, drawn with replacement; validation text is cut into consecutive
    windows. Separate examples are drawn with replacement, too.
    """

    for_examples = True

    @classmethod
    def epoch(
        cls, batching: spec.Batching, sizes: np.ndarray, batch_size: int, generator: np.random.Generator
    ) -> list[np.ndarray]:
        return list(generator.integers(0, len(sizes), (-(-len(sizes) // batch_size), batch_size)))

    def __init__(self, batching: spec.Batching, split: Split, batch_size: int, length: int, seed: int):
        super().__init__(batching, split, batch_size, length, seed)
        self.num_targets = len(split.ids) - 1
        self.num_rows = -(-self.num_targets // length)

    def starts(self, step: int) -> np.ndarray:
        return random(self.seed, step).integers(0, len(self.split.ids) - self.length, self.batch_size)

    def batch(self, step: int) -> Batch:
        return full_rows(self.split.ids, self.starts(step), self.length)

    def rows(self, index: np.ndarray) -> Batch:
        starts = index * self.length
        return padded_rows(self.split.ids, starts, np.minimum(self.length, self.num_targets - starts), self.length)


@implements(spec.Packed)
class Packed(RandomCrops):
    """Batching of text as consecutive windows of ``length`` targets, each used once per epoch in random order; an
    incomplete last window is skipped in training.
    """

    for_examples = False

    def __init__(self, batching: spec.Packed, split: Split, batch_size: int, length: int, seed: int):
        super().__init__(batching, split, batch_size, length, seed)
        self._order = lru_cache(maxsize=2)(self._draw)

    def _draw(self, epoch: int) -> np.ndarray:
        return random(self.seed, epoch).permutation(np.arange(self.num_targets // self.length, dtype=np.uint32))

    def _index(self, step: int) -> np.ndarray:
        """Return the indices of the rows in the training batch of ``step``."""
        per_epoch = self.num_targets // self.length
        place = step * self.batch_size + np.arange(self.batch_size)
        epoch = place // per_epoch
        parts = [self._order(int(e))[place[epoch == e] % per_epoch] for e in np.unique(epoch)]
        return np.concatenate(parts).astype(np.int64)

    def starts(self, step: int) -> np.ndarray:
        return self._index(step) * self.length

    def batch(self, step: int) -> Batch:
        return self.rows(self._index(step))

    def rows(self, index: np.ndarray) -> Batch:
        return with_segments(super().rows(index), self.split.documents, index * self.length)
