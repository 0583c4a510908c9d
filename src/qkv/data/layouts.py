"""Base class of layouts, which arrange text and examples into batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from qkv.data.batch import Batch
from qkv.data.corpus import Split


class Layout(ABC):
    """Base class of layouts: a split as rows of at most ``length`` targets, and rows as batches.

    ``num_rows`` rows cover every target of the split once; ``rows`` returns some of them. ``batch`` returns training
    batches.
    """

    def __init__(self, batching: Any, split: Split, batch_size: int, length: int, seed: int):
        self.batching, self.split, self.batch_size, self.length, self.seed = batching, split, batch_size, length, seed

    for_examples: ClassVar[bool] = False
    """True if it arranges examples, too."""
    num_rows: int

    @classmethod
    def epoch(cls, batching: Any, sizes: np.ndarray, batch_size: int, generator: np.random.Generator) -> list[np.ndarray]:
        """Batches of an epoch of examples, each as indices of examples. ``sizes`` (examples,): positions of each."""
        raise NotImplementedError

    @abstractmethod
    def rows(self, index: np.ndarray) -> Batch:
        """Rows with these numbers."""

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """Training batch of a step."""

    def padding(self) -> float:
        """Share of padding in an epoch's batches."""
        return 0.0

    def problem(self) -> str:
        """Reason why the split is too short, as the end of a sentence; empty if it is not."""
        needed, tokens = self.length + 1, len(self.split.ids)
        if tokens >= needed:
            return ""
        return f"has {tokens} tokens, and a context of {self.length} needs at least {needed}"

    def every_row(self, batches: int | None) -> Iterator[Batch]:
        """All rows once, in order, or evenly spaced rows for so many batches; deterministic."""
        wanted = self.num_rows if batches is None else min(batches * self.batch_size, self.num_rows)
        for begin in range(0, wanted, self.batch_size):
            place = np.arange(begin, min(begin + self.batch_size, wanted))
            yield self.rows(place * self.num_rows // wanted)
