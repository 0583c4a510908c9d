"""Batches of examples. The batch of a step depends only on (seed, step), so that resumed runs see the same batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from qkv.data.borders import borders
from qkv.data.rows import random
from qkv.spec import data as spec
from qkv.spec.errors import UserError

_SORTED_TOGETHER = 64
"""Batches whose rows are sorted by length as a group under ``token_buckets``."""


class ExampleRows:
    """Example indices of the batch of each step.

    ``sizes`` (examples,): positions of each example in a batch. ``batching``: random_crops draws ``batch_size`` with
    replacement; length_buckets uses each once per epoch, in batches of ``batch_size`` of similar length; token_buckets
    fills ``tokens`` positions with examples of similar length. Raises ``UserError`` for other layouts.
    """

    def __init__(self, sizes: np.ndarray, batching: spec.Batching, batch_size: int, seed: int):
        self.sizes, self.batching, self.batch_size, self.seed = sizes, batching, batch_size, seed
        plans: dict[type[spec.Batching], Callable[[int], list[np.ndarray]]] = {
            spec.RandomCrops: self._at_random,
            spec.LengthBuckets: self._by_bucket,
            spec.TokenBuckets: self._by_tokens,
        }
        if type(batching) not in plans:
            known = ", ".join(sorted(kind.kind for kind in plans))
            raise UserError(f"data.batching: {batching.kind!r} is for running text, not for examples; use one of {known}")
        self._plan = lru_cache(maxsize=2)(plans[type(batching)])
        self._ends: list[int] = []

    def of_step(self, step: int) -> np.ndarray:
        """Example indices of the batch of a step, counted from 0."""
        while not self._ends or step >= self._ends[-1]:  # epochs may differ in their number of batches
            self._ends.append((self._ends[-1] if self._ends else 0) + len(self._plan(len(self._ends))))
        epoch = bisect_right(self._ends, step)
        return self._plan(epoch)[step - (self._ends[epoch - 1] if epoch else 0)]

    def padding(self) -> float:
        """Share of padding in the batches of the first epoch."""
        plan = self._plan(0)
        held = sum(len(rows) * int(self.sizes[rows].max()) for rows in plan)
        return 1 - sum(int(self.sizes[rows].sum()) for rows in plan) / held

    def _at_random(self, epoch: int) -> list[np.ndarray]:
        count = -(-len(self.sizes) // self.batch_size)
        generator = random(self.seed, epoch)
        return list(generator.integers(0, len(self.sizes), (count, self.batch_size)))

    def _by_bucket(self, epoch: int) -> list[np.ndarray]:
        generator = random(self.seed, epoch)
        rows = np.concatenate([generator.permutation(bucket) for bucket in np.split(*self._buckets())])
        batches = np.split(rows, range(self.batch_size, len(rows), self.batch_size))
        return [batches[i] for i in generator.permutation(len(batches))]

    def _buckets(self) -> tuple[np.ndarray, np.ndarray]:
        lengths, counts = np.unique(self.sizes, return_counts=True)
        assert isinstance(self.batching, spec.LengthBuckets)
        return np.argsort(self.sizes, kind="stable"), borders(lengths, counts, self.batching.buckets)

    def _by_tokens(self, epoch: int) -> list[np.ndarray]:
        assert isinstance(self.batching, spec.TokenBuckets)
        generator, most = random(self.seed, epoch), self.batching.tokens
        rows = generator.permutation(len(self.sizes))
        together = _SORTED_TOGETHER * max(1, most // max(1, int(self.sizes.mean())))
        batches: list[np.ndarray] = []
        for begin in range(0, len(rows), together):
            some = rows[begin : begin + together]
            batches += filled(some[np.argsort(self.sizes[some], kind="stable")], self.sizes, most)
        return [batches[i] for i in generator.permutation(len(batches))]


def filled(rows: np.ndarray, sizes: np.ndarray, most: int) -> list[np.ndarray]:
    """Group ``rows``, sorted by size, into batches of at most ``most`` positions, padding included; longer examples
    stay alone.
    """
    batches, begin = [], 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or (end + 1 - begin) * int(sizes[rows[end]]) > most:
            batches.append(rows[begin:end])
            begin = end
    return batches


def in_order(sizes: np.ndarray, batch_size: int, batches: int | None) -> Iterator[np.ndarray]:
    """Batches of all examples, sorted by length to reduce padding; or of an evenly spaced subset for so many
    batches.
    """
    chosen = np.arange(len(sizes))
    if batches is not None and batches * batch_size < len(sizes):
        chosen = np.unique(np.linspace(0, len(sizes) - 1, batches * batch_size).round().astype(int))
    chosen = chosen[np.argsort(sizes[chosen], kind="stable")]
    yield from np.split(chosen, range(batch_size, len(chosen), batch_size)) if len(chosen) else ()
