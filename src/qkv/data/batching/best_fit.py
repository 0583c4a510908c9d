"""Batching of whole examples, several to a row."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

from qkv.data.batching.batch import Batch
from qkv.data.batching.layouts import RowLayout
from qkv.spec import data as spec
from qkv.spec.register import implements
from qkv.system.errors import UserError

_TOGETHER = 16
"""Number of batches whose examples are packed as a group."""


def pack(sizes: Sequence[int] | np.ndarray, length: int) -> list[list[int]]:
    """Return the examples of each row of ``length`` positions: best fit, the largest first (Ding et al. 2024).

    Each example goes to the row with the least room that holds it; one of more than ``length`` positions has a row of
    its own.
    """
    rows, room = list[list[int]](), list[tuple[int, int]]()  # room: (free positions, row), ascending
    for i in np.argsort(-np.asarray(sizes), kind="stable").tolist():
        place = bisect_left(room, (int(sizes[i]), -1))
        free, row = room.pop(place) if place < len(room) else (max(length, int(sizes[i])), len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(i)
        insort(room, (free - int(sizes[i]), row))
    return rows


@implements(spec.BestFit)
class BestFit(RowLayout):
    """Batches of ``batch_size`` rows of whole examples; an epoch uses each example once."""

    for_examples = True

    @classmethod
    def epoch(
        cls, batching: spec.BestFit, sizes: np.ndarray, batch_size: int, generator: np.random.Generator
    ) -> list[np.ndarray]:
        order = generator.permutation(len(sizes))
        together = max(1, _TOGETHER * batch_size * batching.tokens // max(1, int(sizes.mean())))
        batches = list[np.ndarray]()
        for begin in range(0, len(order), together):
            some = order[begin : begin + together]
            rows = [some[row] for row in pack(sizes[some], batching.tokens)]
            rows = [rows[i] for i in generator.permutation(len(rows))]
            batches += [np.concatenate(rows[i : i + batch_size]) for i in range(0, len(rows), batch_size)]
        return [batches[i] for i in generator.permutation(len(batches))]

    def rows(self, index: np.ndarray) -> Batch:
        raise UserError(_OF_EXAMPLES)

    def batch(self, step: int) -> Batch:
        raise UserError(_OF_EXAMPLES)

    def problem(self) -> str:
        raise UserError(_OF_EXAMPLES)


_OF_EXAMPLES = "data.batching: 'best_fit' is for examples, not for running text; use 'packed'"
