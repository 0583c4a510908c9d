"""Read data in memory as rows: data frames, columns, dictionaries, texts and ``datasets`` objects.

Objects are recognised by their methods, so that none of their libraries is imported.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from qkv.data.given.plain import is_missing, plain, sort
from qkv.system.errors import UserError

SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation"}
SPLITS |= {"dev": "validation", "test": "test"}
"""Split names that data sets use -> split names of qkv."""
TEXT = "text"
"""Column name for a list of texts."""
_AT_ONCE = 1000
"""Number of rows of a ``datasets`` object that are read at once."""
_NONE = object()
ALLOWED = "a data frame, a list of dicts, a dict of columns, a list of texts, or a datasets object"


class Given(NamedTuple):
    """Rows of one split, each a mapping of column to plain value; the rows can be iterated over only once.

    columns: names of the columns.   texts: True for a list of texts, which have the one column ``TEXT``.
    """

    columns: tuple[str, ...]
    rows: Iterator[dict[str, Any]]
    texts: bool = False


def is_given(value: Any) -> bool:
    """Return True if ``value`` is data in memory, not the name of a file or data set."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return False
    return isinstance(value, Iterable) or is_frame(value) or _is_dataset(value) or is_column(value)


def splits_of(value: Any, what: str = "data") -> dict[str, Any]:
    """Return the data by split ("train", "validation", "test").

    ``value`` is a mapping of splits, such as a ``DatasetDict``; any other data is the split "train". ``what``: name of
    the data in messages. Raises ``UserError`` for other splits, and if there is no split "train".
    """
    if not isinstance(value, Mapping) or not are_splits(value):
        return {"train": value}
    splits: dict[str, Any] = {}
    for name, part in value.items():
        split = SPLITS.get(str(name))
        if split is None or split in splits:
            raise UserError(
                f"{what}: there is no split {str(name)!r}{' beside ' if splits else ''}{', '.join(splits)}; "
                "give train, validation and test, each at most once"
            )
        splits[split] = part
    if "train" not in splits:
        raise UserError(f"{what} has the splits {', '.join(splits)}, but none called train")
    return splits


def are_splits(value: Mapping[Any, Any]) -> bool:
    """Return True for a mapping of splits, whose keys are split names or whose values are whole tables; False for a
    mapping of columns.
    """
    if any(is_frame(part) or _is_dataset(part) for part in value.values()):
        return True
    return bool(value) and all(str(name) in SPLITS for name in value)


def rows_of(value: Any, what: str = "data") -> Given:
    """Return the rows of one table or list of texts. ``what``: name of the data in messages.

    Raises ``UserError`` for an object of another kind, and for columns of different lengths or with the same name.
    While the rows are read, raises it for a row that is not a mapping and for a value that is not plain data.
    """
    if _is_dataset(value):
        return _of_dataset(value, what)
    if getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u", "f") and value.ndim in (1, 2):
        return _of_columns(_of_numbers(value), what)
    if hasattr(value, "to_pydict"):  # an Arrow table
        return _of_columns(value.to_pydict(), what)
    if is_frame(value):
        return _of_columns({**_dates(value), **{name: value[name] for name in _unique(value.columns, what)}}, what)
    if isinstance(value, Mapping):
        return _of_columns(value, what)
    if is_column(value) and not isinstance(value, (list, tuple)):
        return _of_items(iter(_listed(value)), what)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return _of_items(iter(value), what)
    raise UserError(f"{what} is {sort(value)}; give {ALLOWED}")


def _of_numbers(array: Any) -> dict[str, Any]:
    """Return the columns of an array of numbers (rows,) or (rows, columns), named "1", "2", …; a series keeps its
    name.
    """
    if array.ndim == 1:
        return {**_dates(array), str(getattr(array, "name", None) or "1"): array}
    return {str(i + 1): array[:, i] for i in range(array.shape[1])}


def _dates(frame: Any) -> dict[str, Any]:
    """Return the index of a data frame or column as columns, if it holds dates or periods, or has several levels."""
    index: Any = getattr(frame, "index", None)
    columns = list(map(str, getattr(frame, "columns", ())))
    if not hasattr(index, "dtype") or not hasattr(index, "names"):
        return {}
    several = getattr(index, "nlevels", 1) > 1
    if not several and not _holds_dates(index):
        return {}
    levels = [index.get_level_values(i) for i in range(index.nlevels)] if several else [index]
    plain_names = [f"level_{i}" for i in range(len(levels))] if several else ["time"]
    names = [str(name or other) for name, other in zip(index.names, plain_names, strict=True)]
    return {name: level for name, level in zip(names, levels, strict=True) if name not in columns}


def _holds_dates(index: Any) -> bool:
    if index.dtype.kind == "M":
        return True
    first = index[0] if len(index) else None
    return hasattr(first, "isoformat") or hasattr(first, "start_time")


def is_frame(value: Any) -> bool:
    """Return True for a data frame of pandas, polars or a similar library."""
    return hasattr(value, "columns") and hasattr(value, "__getitem__") and hasattr(value, "shape")


def _is_dataset(value: Any) -> bool:
    """Return True for a ``datasets.Dataset`` or ``IterableDataset``."""
    return hasattr(value, "column_names") and hasattr(value, "features")


def is_column(value: Any) -> bool:
    """Return True for a list or an array of values, or a column of a data frame."""
    if isinstance(value, (str, bytes, Mapping)) or is_frame(value) or _is_dataset(value):
        return False
    return isinstance(value, (list, tuple)) or any(hasattr(value, name) for name in ("to_list", "tolist", "to_pylist"))


def _listed(column: Any) -> list[Any]:
    if isinstance(column, np.ndarray) and column.dtype.kind == "M":
        return [None if text == "NaT" else text for text in np.datetime_as_string(column).tolist()]
    for method in ("to_list", "tolist", "to_pylist"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _unique(names: Iterable[Any], what: str) -> list[Any]:
    keys = list(names)
    seen = [str(name) for name in keys]
    twice = next((name for name in seen if seen.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{what} has two columns {twice!r}; give each column its own name")
    return keys


def _of_columns(columns: Mapping[Any, Any], what: str) -> Given:
    """Return the rows of a mapping of columns. Raises ``UserError`` if the columns differ in length."""
    names = tuple(str(name) for name in _unique(columns, what))
    if not names:
        raise UserError(f"{what} is empty; give {ALLOWED}")
    for name, column in zip(names, columns.values(), strict=True):
        if not is_column(column):
            raise UserError(f"{what}: column {name!r} is {sort(column)}; a dict of columns holds one list per column")
    values = [_listed(column) for column in columns.values()]
    longest = max(range(len(values)), key=lambda i: len(values[i]), default=0)
    for name, column in zip(names, values, strict=True):
        if len(column) < len(values[longest]):
            raise UserError(
                f"{what}: column {name!r} has {len(column):,} values and column {names[longest]!r} has "
                f"{len(values[longest]):,}; row {len(column)} (counted from 0) is incomplete"
            )
    return Given(names, _plain((dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)), what))


def _of_items(items: Iterator[Any], what: str) -> Given:
    """Return the rows of a list of mappings or of texts; the first item decides which of the two it is."""
    first = next(items, _NONE)
    if first is _NONE:
        raise UserError(f"{what} is empty; give {ALLOWED}")
    items = itertools.chain([first], items)
    if isinstance(first, Mapping):
        rows = list(items)
        names = dict.fromkeys(str(name) for row in rows if isinstance(row, Mapping) for name in row)
        return Given(tuple(names), _plain(_mappings(rows, what), what))
    if isinstance(first, str) or is_missing(first):
        return Given((TEXT,), ({TEXT: text} for text in _texts(items, what)), texts=True)
    raise UserError(f"{what}: row 0 is {sort(first)}, not a text or a dict; give {ALLOWED}")


def _mappings(rows: Iterable[Any], what: str) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise UserError(f"{what}: row {number} (counted from 0) is {sort(row)}, and the rows before it are dicts")
        yield {str(name): value for name, value in row.items()}


def _texts(items: Iterable[Any], what: str) -> Iterator[str | None]:
    for number, text in enumerate(items):
        if not isinstance(text, str) and not is_missing(text):
            raise UserError(f"{what}: row {number} (counted from 0) is {sort(text)}, and the rows before it are texts")
        yield text if isinstance(text, str) else None


def _plain(rows: Iterable[Mapping[str, Any]], what: str) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows):
        cells: dict[str, Any] = {}
        for name, value in row.items():
            try:
                cells[name] = plain(value)
            except TypeError as error:
                raise UserError(
                    f"{what}: column {name!r} of row {number} (counted from 0) holds {error}, which is not a text, "
                    "number or list; remove the column"
                ) from None
        yield cells


def _of_dataset(data: Any, what: str) -> Given:
    """Return the rows of a ``datasets`` object. Classes stored as numbers (``ClassLabel``) become their names."""
    names = tuple(data.column_names or (data.features or {}))
    decode = {name: decoder for name in names if (decoder := _decoder((data.features or {}).get(name))) is not None}
    if not names:
        return _of_items(iter(data), what)

    def rows() -> Iterator[dict[str, Any]]:
        for row in _read(data, names):
            yield {name: decode[name](value) if name in decode else value for name, value in row.items()}

    return Given(names, _plain(rows(), what))


def _read(data: Any, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    if not hasattr(data, "__len__"):
        yield from (dict(row) for row in data)
        return
    for begin in range(0, len(data), _AT_ONCE):
        some = data[begin : begin + _AT_ONCE]
        yield from (dict(zip(names, row, strict=True)) for row in zip(*(some[name] for name in names), strict=True))


def _decoder(feature: Any) -> Callable[[Any], Any] | None:
    """Return a function that turns the class numbers of a column into names; None if the column has no class names.

    The class number -1 is a missing label.
    """
    names = getattr(feature, "names", None)
    if isinstance(names, (list, tuple)) and hasattr(feature, "int2str"):
        return lambda value: _class(value, names)
    inner = feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", None)
    one = _decoder(inner) if inner is not None and not isinstance(inner, Mapping) else None
    return None if one is None else lambda values: values if values is None else [one(value) for value in values]


def _class(value: Any, names: list[str] | tuple[str, ...]) -> Any:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return names[value] if 0 <= value < len(names) else None
    return value
