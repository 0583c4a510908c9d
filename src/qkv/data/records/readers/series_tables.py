"""Tables of series, one series per row: columns of lists, columns of numbers side by side, and files of arrays."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from qkv.data.cells.numbers import NumberForm, is_empty, number_form
from qkv.data.corpora.text import TextSource
from qkv.data.records.columns.profile import IDS, Profile, plain, profiles
from qkv.data.records.model import BadRow, Role
from qkv.data.records.table import Row, Table
from qkv.system.errors import UserError, nearest

SERIES = "series"
"""Kind of the roles whose values are series, and name of their column in files of arrays."""
_NAMES = ("series", "x", "values", "data", "signals", "samples")
TO = ".."
"""Separator between the first and the last name of a range of columns."""
_FEWEST = 3
"""Minimum number of columns of numbers that are taken as the steps of a series."""
_TEXT = 30
"""Mean number of characters above which a column holds texts, not names of the rows."""


def holds_series(table: Table) -> bool:
    """Return True if the rows of a table are series: a column holds lists of numbers, or nearly all columns hold
    numbers.
    """
    columns = profiles(table)
    texts = [each for each in columns.values() if not each.is_number and not each.is_series and each.filled]
    if any(each.objects or each.images or each.clips or (each.length > _TEXT and not each.is_label) for each in texts):
        return False
    if any(each.is_series for each in columns.values()):
        return True
    texts = [each for each in texts if not _names_rows(each)]
    numbers = [each for each in columns.values() if each.is_number and not _names_rows(each)]
    return len(numbers) >= _FEWEST and len(texts) <= 1 and all(each.is_label for each in texts)


def _names_rows(profile: Profile) -> bool:
    return plain(profile.name) in IDS


def with_series(table: Table, roles: Sequence[Role], settings: Mapping[str, str], option: str) -> Table:
    """Join columns of a table to one column of series, for the role of series.

    The table is unchanged if it has such a column already, or if no role is a series. ``settings``: columns by role;
    the series may be several columns, as in "x,y,z" or "t0..t95". Columns of lists become channels, columns of numbers
    become steps. Without ``settings``, the series are the columns of lists, else the columns of numbers that no other
    role uses. Raises ``UserError`` for unknown columns.
    """
    role = next((role for role in roles if role.kind == SERIES), None)
    if role is None:
        return table
    column = settings.get(role.name)
    if column in table.columns:
        return table
    if column is not None and ("," in column or TO in column):
        columns = named_columns(table, column, f"{option}.{role.name}")
        return _joined(table, column, columns)
    used_columns = _columns_of_other_roles(table, [other for other in roles if other is not role], settings)
    candidates = {name: each for name, each in profiles(table).items() if name not in used_columns}
    lists = [name for name, each in candidates.items() if each.is_series]
    if len(lists) == 1 or (not lists and len(candidates) < 2):
        return replace(table, defaults={**table.defaults, SERIES: tuple(lists)})
    if lists:
        return _joined(
            table, ",".join(lists), lists, f"the lists {_format_columns(lists)} are taken as channels (guessed)"
        )
    first = next(iter(candidates))
    numbers = [
        name
        for name, each in candidates.items()
        if (each.is_number or not each.filled) and not _names_rows(each) and not (name == first and each.is_id)
    ]
    if len(numbers) < 2:
        return table
    for other in roles:
        if other.kind == "number" and not used_columns:
            raise UserError(
                f"{table.name}: which column is the {other.name}? The other columns of numbers are the steps of a "
                f"series; name it, such as {option}={{{other.name}: {table.columns[-1]}}}"
            )
    return _joined(
        table, range_of(table, numbers), numbers, f"the {_format_columns(numbers)} are taken as steps (guessed)"
    )


def _format_columns(names: Sequence[str]) -> str:
    if len(names) <= 4:
        return ", ".join(map(repr, names))
    return f"{len(names)} columns {names[0]!r} to {names[-1]!r}"


def _columns_of_other_roles(table: Table, roles: Sequence[Role], settings: Mapping[str, str]) -> set[str]:
    """Return the columns of the other roles: as in ``settings``, else by their usual names, or as the format defines
    them.
    """
    columns = {column for column in settings.values() if column in table.columns}
    for role in roles:
        if role.name in settings or role.optional:
            continue
        names = [plain(name) for name in (role.name, *role.names)]
        named = sorted((name for name in table.columns if plain(name) in names), key=lambda n: names.index(plain(n)))
        columns |= {*named[:1], *table.defaults.get(role.kind, ())}
    return columns


def range_of(table: Table, names: Sequence[str]) -> str:
    """Abbreviate the names of columns: "a..z" for neighbouring columns."""
    places, parts = [table.columns.index(name) for name in names], list[str]()
    begin = 0
    for i in range(1, len(places) + 1):
        if i == len(places) or places[i] != places[i - 1] + 1:
            parts.append(names[begin] if i - begin == 1 else f"{names[begin]}{TO}{names[i - 1]}")
            begin = i
    return ",".join(parts)


def named_columns(table: Table, names: str, option: str) -> list[str]:
    """Return the columns that "a,b" or "a..c" names. Raises ``UserError`` for a missing column."""
    columns = list[str]()
    for part in (part.strip() for part in names.split(",")):
        ends = [part] if part in table.columns else [end.strip() for end in part.split(TO, 1)]
        for end in ends:
            if end not in table.columns:
                raise UserError(f"{option}: {table.name} has no column {end!r}; {nearest(end, table.columns)}")
        first, last = table.columns.index(ends[0]), table.columns.index(ends[-1])
        columns += table.columns[first : last + 1]
    if not columns or len(set(columns)) < len(columns):
        raise UserError(f"{option}: {names!r} given; name each column once, in their order")
    return columns


def _joined(table: Table, name: str, columns: Sequence[str], note: str = "") -> Table:
    """Replace ``columns`` of a table by one column ``name``: lists become a mapping by name, numbers become one
    list.
    """

    def parse() -> Iterator[Row | BadRow]:
        for row in table.rows:
            yield row._replace(values=_row(row.values)) if isinstance(row, Row) else row

    def _row(values: Mapping[str, Any]) -> dict[str, Any]:
        cells = [values.get(column) for column in columns]
        rest = {column: value for column, value in values.items() if column not in gone}
        if any(isinstance(cell, (list, np.ndarray)) or (isinstance(cell, str) and "[" in cell) for cell in cells):
            return {**rest, name: dict(zip(columns, cells, strict=True))}
        return {**rest, name: [None if _empty(cell, table.missing) else numbers(cell) for cell in cells]}

    def numbers(cell: Any) -> Any:
        if not isinstance(cell, str):
            return cell
        number = form().read(cell)
        return number if number == number else cell  # a text, which the reader of the series reports

    @cache
    def form() -> NumberForm:
        rows = [row.values for row in table.rows if isinstance(row, Row)]
        return number_form(values.get(column) for values in rows for column in columns)

    gone = set(columns)
    remaining = tuple(column for column in table.columns if column not in gone)
    notes = (*table.notes, *([note] if note else []))
    defaults = {**table.defaults, SERIES: (name,)}
    return replace(table, columns=(name, *remaining), parse=parse, defaults=defaults, notes=notes, header=False)


def _empty(cell: Any, missing: frozenset[str]) -> bool:
    return is_empty(cell) or (isinstance(cell, str) and cell.strip() in missing)


def array_table(text: TextSource, arrays: Mapping[str, np.ndarray]) -> Table:
    """Build the table of an ``.npz`` or ``.npy`` file of series.

    The file holds an array (rows, steps) or (rows, steps, channels) of numbers; arrays (rows,) are further columns.
    Raises ``UserError`` for arrays of other shapes.
    """
    large = [name for name, each in arrays.items() if each.ndim in (2, 3) and each.dtype.kind in "iuf"]
    named = [name for name in large if plain(name) in _NAMES]
    if len(named or large) != 1:
        raise UserError(
            f"{text.name} has the arrays {', '.join(arrays) or 'none'}, of which {len(large)} are tables of numbers; "
            f"give one of series (rows, steps) or (rows, steps, channels), called {SERIES!r}"
        )
    values = arrays[(named or large)[0]]
    columns = {name: each for name, each in arrays.items() if each.ndim == 1 and len(each) == len(values)}
    rows = [
        Row(i + 1, {SERIES: values[i].tolist(), **{name: each[i].item() for name, each in columns.items()}})
        for i in range(len(values))
    ]
    return Table(text.name, (SERIES, *columns), lambda: iter(rows), text.digest(), {SERIES: (SERIES,)})


def npy_array(text: TextSource) -> np.ndarray:
    """Read the array in an ``.npy`` file. Raises ``UserError`` for a damaged file, or one that holds objects."""
    try:
        return np.load(io.BytesIO(b"".join(text.raw())), allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise UserError(f"{text.name} is not an .npy file of numbers: {error}") from None
