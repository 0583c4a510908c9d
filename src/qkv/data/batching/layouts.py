"""Base class of layouts, which arrange text and examples into batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from qkv.data.batching.batch import Batch
from qkv.data.corpora.corpus import Split


class RowLayout(ABC):
    """Base class of layouts: cut a split of text into rows of at most ``length`` targets, and group rows into batches.

    The ``num_rows`` rows cover every target of the split once. ``batch`` returns the training batch of a step, ``rows``
    a batch of the rows with given indices.
    """

    def __init__(self, batching: Any, split: Split, batch_size: int, length: int, seed: int):
        self.batching, self.split, self.batch_size, self.length, self.seed = batching, split, batch_size, length, seed

    for_examples: ClassVar[bool] = False
    """True if the layout can also batch separate examples, not only running text."""
    num_rows: int

    @classmethod
    def epoch(
        cls, batching: Any, sizes: np.ndarray, batch_size: int, generator: np.random.Generator
    ) -> list[np.ndarray]:
        """Return the batches of one epoch of separate examples, each an array of example indices.

        ``sizes`` (examples,): number of positions of each example.
        """
        raise NotImplementedError

    @abstractmethod
    def rows(self, index: np.ndarray) -> Batch:
        """Return the batch of the rows with the indices ``index``."""

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """Return the training batch of step ``step``, a function of (seed, step) only."""

    def starts(self, step: int) -> np.ndarray:
        """Return the index of the first token of each row in the training batch of ``step``; empty if a row is not one
        piece of the text.
        """
        return np.empty(0, np.int64)

    def padding(self) -> float:
        """Return the fraction of positions in an epoch's batches that are padding, 0 to 1."""
        return 0.0

    def problem(self) -> str:
        """Return the reason why the split is too short for this layout, as the end of a sentence; "" if it is long
        enough.
        """
        needed, tokens = self.length + 1, len(self.split.ids)
        if tokens >= needed:
            return ""
        return f"has {tokens} tokens, and a context of {self.length} needs at least {needed}"

    def every_row(self, batches: int | None) -> Iterator[Batch]:
        """Yield evaluation batches, always the same.

        ``batches`` None: all rows once, in order. Otherwise: ``batches`` batches of evenly spaced rows.
        """
        total = self.num_rows if batches is None else min(batches * self.batch_size, self.num_rows)
        for begin in range(0, total, self.batch_size):
            place = np.arange(begin, min(begin + self.batch_size, total))
            yield self.rows(place * self.num_rows // total)
