"""Processor of the cells of a table's column of numbers or of categories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from qkv.data.cells.numbers import is_empty, number_form, read_numbers, too_many
from qkv.data.processors.processor import Processor
from qkv.data.records.model import Role
from qkv.data.records.values import Unusable
from qkv.layers.signal import Signal
from qkv.spec.register import implements
from qkv.spec.signals.cells import MOST_CATEGORIES, Cell
from qkv.system.errors import UserError

_BINS = 8
_MOST = 10.0
"""Largest absolute standardised number; larger ones are clipped."""
_SHOWN = 40


@implements(Cell)
class CellProcessor(Processor):
    """Cells of one column -> features (B, F).

    number     (z, bins …, empty)          z = (x - mean) / deviation, clipped; bin i: how far x is above edge i,
                                           0 … 1 at edge i + 1
    category   (other, one-hot …, empty)   other: a category that the training split does not have
    """

    example = "3.5"
    simple = "cells"
    automatic = False
    spec: Cell

    def __init__(self, spec: Cell):
        super().__init__(spec)
        decimals = {None: ".", "point": ".", "comma": ","}
        self._form = number_form(())._replace(decimal=decimals[spec.decimal])
        self._places = {name: i for i, name in enumerate(spec.categories, 1)}
        self._empty = 0

    def role_of(self, name: str) -> Role:
        return Role(name, "cell", (name,))

    def fitted(self, values: Sequence[Any]) -> Cell:
        if self.spec.num_simple is not None:
            return self.spec
        filled = [value for value in values if not is_empty(value)]
        if not filled:
            raise UserError("data.inputs: a column of cells is empty in the training split; leave it out")
        numbers = read_numbers(filled, self.spec.decimal)
        if any(isinstance(value, bool) for value in filled) or too_many(len(numbers.wrong), len(filled)):
            return self.spec.changed(categories=_usual(filled))
        column = np.array(numbers.values, np.float64)
        return self._of_numbers(column[np.isfinite(column)], "comma" if numbers.form.decimal == "," else "point")

    def _of_numbers(self, column: np.ndarray, decimal: str) -> Cell:
        """Return the spec for a column with the numbers ``column``."""
        edges = np.unique(np.quantile(column, np.linspace(0, 1, _BINS + 1)).round(12))
        mean, deviation = float(column.mean()), float(column.std()) or 1.0
        borders = tuple(edges.tolist()) if len(edges) > 2 else ()
        return self.spec.changed(decimal=decimal, mean=mean, deviation=deviation, edges=borders)

    def encode(self, value: Any) -> np.ndarray:
        features = np.zeros(self.spec.num_simple or 0, np.float32)
        if is_empty(value):
            self._empty += 1
            features[-1] = 1
        elif self.spec.mean is None:
            features[self._places.get(_category(value), 0)] = 1
        else:
            number = self._number(value)
            features[0] = np.clip((number - self.spec.mean) / self.spec.deviation, -_MOST, _MOST)
            edges = np.array(self.spec.edges)
            features[1:-1] = np.clip((number - edges[:-1]) / np.diff(edges), 0, 1) if len(edges) else ()
        return features

    def _number(self, value: Any) -> float:
        number = self._form.read(value)
        if number != number:  # a thousands separator or a unit
            number = read_numbers([value], self.spec.decimal).values[0]
        if number != number:
            raise Unusable(f"{str(value)[:_SHOWN]!r} is no number")
        return number

    def size(self, encoded: np.ndarray) -> int:
        return 1

    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        return Signal(torch.from_numpy(np.stack(encoded)))

    def features(self, encoded: np.ndarray) -> np.ndarray:
        return encoded

    def notes(self) -> list[str]:
        many = "1 cell is" if self._empty == 1 else f"{self._empty:,} cells are"
        return [f"{many} empty, which is read as a value of its own"] if self._empty else []

    def shown(self, value: Any) -> str:
        return "–" if is_empty(value) else str(value)[:_SHOWN]


def _category(value: Any) -> str:
    return str(value).strip()


def _usual(values: Sequence[Any]) -> tuple[str, ...]:
    """Return the most frequent categories, in alphabetical order."""
    counts = Counter(map(_category, values))
    return tuple(sorted(name for name, _ in counts.most_common(MOST_CATEGORIES)))
