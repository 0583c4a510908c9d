"""Stand-ins for data frames and ``datasets`` objects, with the methods by which they are recognised and no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


class Series:
    """Column of a data frame."""

    def __init__(self, values: list[Any]):
        self.values = values

    def to_list(self) -> list[Any]:
        return self.values


class Frame:
    """Data frame of columns in order."""

    def __init__(self, columns: dict[Any, list[Any]]):
        self._columns, self.columns = columns, list(columns)
        self.shape = (len(next(iter(columns.values()), [])), len(columns))

    def __getitem__(self, name: Any) -> Series:
        return Series(self._columns[name])


class Value:
    """Feature of plain values."""


class ClassLabel:
    """Feature whose values are numbers of classes."""

    def __init__(self, names: list[str]):
        self.names = names

    def int2str(self, number: int) -> str:
        return self.names[number]


class Listed:
    """Feature of lists of another feature."""

    def __init__(self, feature: Any):
        self.feature = feature


class Dataset:
    """``datasets.Dataset``: rows by number, or a slice as a dict of columns."""

    def __init__(self, columns: dict[str, list[Any]], features: dict[str, Any]):
        self._columns, self.features, self.column_names = columns, features, list(columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, rows: slice) -> dict[str, list[Any]]:
        return {name: column[rows] for name, column in self._columns.items()}


class Stream:
    """``datasets.IterableDataset``: rows in order."""

    def __init__(self, rows: list[dict[str, Any]], features: dict[str, Any] | None):
        self._rows, self.features = rows, features
        self.column_names = None if features is None else list(features)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)


class NAType:
    """Missing value whose comparisons have no truth value, as in pandas."""

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


def named_entities() -> Dataset:
    """Two sentences with tags stored as numbers, and labels of which one is missing."""
    features = {"tokens": Listed(Value()), "tags": Listed(ClassLabel(["O", "B-X"])), "label": ClassLabel(["no", "yes"])}
    rows = {"tokens": [["a", "b"], ["c"]], "tags": [np.array([0, 1]), [1]], "label": [1, -1]}
    return Dataset(rows, features)
