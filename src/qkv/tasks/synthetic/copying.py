"""Copying of symbols."""

from __future__ import annotations

import numpy as np

from qkv.data.synthetic.copying import copying_batch
from qkv.spec.register import implements
from qkv.spec.tasks import Copying
from qkv.tasks.synthetic.by_size import BySizeTask

MARK = "="


@implements(Copying)
class CopyingTask(BySizeTask):
    """Copying: -Σ log p(symbol) after the separator that ends the original (Jelassi et al. 2024)."""

    spec: Copying
    size_name = "number of symbols"

    def words(self) -> tuple[str, ...]:
        return tuple([*(f"s{i}" for i in range(self.spec.symbols)), MARK])

    def numbers(self, rng: np.random.Generator, count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        return copying_batch(rng, count, size, self.spec.symbols)

    def example(self) -> str:
        return f"s3 s1 {MARK} s3"
