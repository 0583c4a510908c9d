"""Associative recall of values by their keys."""

from __future__ import annotations

import numpy as np

from qkv.data.synthetic.associative_recall import associative_recall_batch
from qkv.spec.register import implements
from qkv.spec.tasks import AssociativeRecall
from qkv.tasks.synthetic.by_size import BySizeTask


@implements(AssociativeRecall)
class AssociativeRecallTask(BySizeTask):
    """Associative recall: -Σ log p(value) at every repeated key (Arora et al. 2023)."""

    spec: AssociativeRecall
    size_name = "number of pairs"

    def words(self) -> tuple[str, ...]:
        return tuple([*(f"k{i}" for i in range(self.spec.keys)), *(f"v{i}" for i in range(self.spec.values))])

    def numbers(self, rng: np.random.Generator, count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        return associative_recall_batch(rng, count, size, self.spec.keys, self.spec.values)

    def example(self) -> str:
        return "k3 v1 k0 v5 k3"
