"""What every way of laying text into batches has in common, and the registry of the ways."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from qkv.data.batch import Batch
from qkv.data.corpus import Split
from qkv.spec import data as spec


class Layout(ABC):
    """How one part is laid into rows of at most ``length`` targets, and rows into batches.

    ``num_rows`` rows hold every target of the part once; ``rows`` gives some of them. ``batch`` is what training sees.
    """

    def __init__(self, batching: Any, split: Split, batch_size: int, length: int, seed: int):
        self.batching, self.split, self.batch_size, self.length, self.seed = batching, split, batch_size, length, seed

    num_rows: int

    @abstractmethod
    def rows(self, index: np.ndarray) -> Batch:
        """The rows with these numbers."""

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """The batch of a step of training."""

    def padding(self) -> float:
        """The share of positions in an epoch's batches that are padding."""
        return 0.0

    def problem(self) -> str:
        """Why the part is too short, as the end of a sentence; empty if it is not."""
        needed, tokens = self.length + 1, len(self.split.ids)
        if tokens >= needed:
            return ""
        return f"has {tokens} tokens, and a context of {self.length} needs at least {needed}"

    def every_row(self, batches: int | None) -> Iterator[Batch]:
        """All rows once, in order, or evenly spread ones for so many batches; the same at every call."""
        wanted = self.num_rows if batches is None else min(batches * self.batch_size, self.num_rows)
        for begin in range(0, wanted, self.batch_size):
            place = np.arange(begin, min(begin + self.batch_size, wanted))
            yield self.rows(place * self.num_rows // wanted)


LAYOUTS: dict[type[spec.Batching], type[Layout]] = {}
L = TypeVar("L", bound=type[Layout])


def lays(kind: type[spec.Batching]) -> Callable[[L], L]:
    """Register the class below as the layout of ``kind``."""

    def register(layout: L) -> L:
        LAYOUTS[kind] = layout
        return layout

    return register
