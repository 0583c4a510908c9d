"""Batches of examples. The batch of a step depends only on (seed, step), so that resumed runs see the same batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from qkv.data.batching.rows import random
from qkv.spec import data as spec
from qkv.spec.register import implementation, implementations
from qkv.system.errors import UserError


class ExampleRows:
    """Plan of the training batches of separate examples: for each step, the indices of the examples in its batch.

    ``sizes`` (examples,): number of positions of each example. The layout of ``batching`` groups the examples of each
    epoch. Raises ``UserError`` for layouts that only handle running text.
    """

    def __init__(self, sizes: np.ndarray, batching: spec.Batching, batch_size: int, seed: int):
        self.sizes, self.batching, self.batch_size, self.seed = sizes, batching, batch_size, seed
        layout = implementation(batching, "qkv.data.batching")
        if not layout.for_examples:
            kinds = implementations(spec.Batching, "qkv.data.batching").items()
            names = ", ".join(sorted(part.kind for part, entry in kinds if entry.for_examples))
            raise UserError(
                f"data.batching: {batching.kind!r} is for running text, not for examples; use one of {names}"
            )
        self._plan = lru_cache(maxsize=2)(lambda epoch: layout.epoch(batching, sizes, batch_size, random(seed, epoch)))
        self._ends: list[int] = []

    def of_step(self, step: int) -> np.ndarray:
        """Return the example indices of the training batch of step ``step``; steps are counted from 0."""
        while not self._ends or step >= self._ends[-1]:  # epochs may differ in their number of batches
            self._ends.append((self._ends[-1] if self._ends else 0) + len(self._plan(len(self._ends))))
        epoch = bisect_right(self._ends, step)
        return self._plan(epoch)[step - (self._ends[epoch - 1] if epoch else 0)]

    def padding(self) -> float:
        """Return the fraction of positions in the first epoch's batches that are padding, 0 to 1."""
        plan = self._plan(0)
        positions = sum(len(rows) * int(self.sizes[rows].max()) for rows in plan)
        return 1 - sum(int(self.sizes[rows].sum()) for rows in plan) / positions


def filled(rows: np.ndarray, sizes: np.ndarray, most: int) -> list[np.ndarray]:
    """Group the example indices ``rows``, sorted by size, into batches of at most ``most`` positions, padding included.

    An example of more than ``most`` positions is a batch of its own.
    """
    batches, begin = [], 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or (end + 1 - begin) * int(sizes[rows[end]]) > most:
            batches.append(rows[begin:end])
            begin = end
    return batches


def in_order(sizes: np.ndarray, batch_size: int, batches: int | None) -> Iterator[np.ndarray]:
    """Yield the example indices of evaluation batches, sorted by length to reduce padding.

    ``batches`` None: all examples. Otherwise: ``batches`` batches of evenly spaced examples.
    """
    chosen = np.arange(len(sizes))
    if batches is not None and batches * batch_size < len(sizes):
        chosen = np.unique(np.linspace(0, len(sizes) - 1, batches * batch_size).round().astype(int))
    chosen = chosen[np.argsort(sizes[chosen], kind="stable")]
    yield from np.split(chosen, range(batch_size, len(chosen), batch_size)) if len(chosen) else ()
