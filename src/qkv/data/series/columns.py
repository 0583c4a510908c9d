"""Columns of a table of time series: time stamps, names of series, values, and covariates known in advance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv.data.records.table import Row, Table
from qkv.data.series.stamps import read_stamps
from qkv.spec.errors import UserError, nearest

ROLES = ("time", "series", "value", "known")
_TIMES = ("time", "date", "datetime", "timestamp", "ds", "day", "month", "week", "year", "quarter", "index")
_SAMPLE = 200
_MOSTLY = 0.9


class SeriesColumns(NamedTuple):
    """Columns by their use. ``note``: sentence on those that were guessed, "" if none."""

    time: str | None
    series: str | None
    channels: tuple[str, ...]
    known: tuple[str, ...]
    note: str = ""


def choose_columns(table: Table, given: Mapping[str, str], where: str) -> SeriesColumns:
    """Columns of a table of series: as ``given`` by role, else guessed.

    Time: a column of dates, or of numbers with a usual name. Values: all other columns of numbers. Names of series and
    covariates are never guessed. Raises ``UserError`` for an unknown column or role, and without a column of values.
    """
    wrong = next((role for role in given if role not in ROLES), None)
    if wrong is not None:
        raise UserError(f"{where}.columns: there is no role {wrong!r}; {nearest(wrong, ROLES)}")
    named = {role: _several(table, names, f"{where}.columns.{role}") for role, names in given.items()}
    for role in ("time", "series"):
        if len(named.get(role, ())) > 1:
            raise UserError(f"{where}.columns.{role}: {given[role]!r} names several columns; name one")
    sample = {name: _cells(table, name, _SAMPLE) for name in table.columns}
    taken = {name for names in named.values() for name in names}
    time = named.get("time", ()) or _time(sample, taken)
    free = [name for name in table.columns if name not in {*taken, *time}]
    channels = named.get("value", ()) or tuple(name for name in free if _is_numeric(sample[name]))
    if not channels:
        raise UserError(
            f"{table.name} has no column of numbers to forecast; its columns are {', '.join(table.columns)}"
        )
    said = [f"{time[0]!r} as the time"] if time and "time" not in named else []
    if "value" not in named:
        names = ", ".join(map(repr, channels[:8])) + (f" and {len(channels) - 8} more" if len(channels) > 8 else "")
        said.append(f"{names} as the values")
    note = f"{' and '.join(said)} (guessed)" if said else ""
    single = {role: next(iter(names), None) for role, names in (("time", time), ("series", named.get("series", ())))}
    return SeriesColumns(single["time"], single["series"], channels, named.get("known", ()), note)


def _several(table: Table, names: str, where: str) -> tuple[str, ...]:
    """Names of columns: one, or several between commas."""
    found = (names,) if names in table.columns else tuple(name.strip() for name in names.split(",") if name.strip())
    for name in found:
        if name not in table.columns:
            raise UserError(f"{where}: {table.name} has no column {name!r}; {nearest(name, table.columns)}")
    if not found or len(set(found)) < len(found):
        raise UserError(f"{where}: {names!r} given; name each column once, with commas between them")
    return found


def _time(sample: Mapping[str, Sequence[Any]], taken: set[str]) -> tuple[str, ...]:
    """Column of the time stamps, or none."""
    for name, cells in sample.items():
        if name in taken or not cells:
            continue
        stamps = read_stamps(cells)
        named, readable = name.strip().lower() in _TIMES, np.isfinite(stamps.values).mean()
        if (named and readable > 0.5) or (stamps.dates and readable >= _MOSTLY):
            return (name,)
    return ()


def _is_numeric(cells: Sequence[Any]) -> bool:
    found = [number_in(cell) for cell in cells if not is_empty(cell)]
    return bool(found) and np.isfinite(found).mean() >= _MOSTLY


def _cells(table: Table, name: str, most: int) -> list[Any]:
    rows = (row for row in table.rows[: 5 * most] if isinstance(row, Row))
    cells = [row.values.get(name) for row in rows]
    return [None if cell in table.missing else cell for cell in cells if not is_empty(cell)][:most]


def is_empty(cell: Any) -> bool:
    """True for a missing value, an empty text or NaN."""
    return cell is None or (isinstance(cell, str) and not cell.strip()) or (isinstance(cell, float) and cell != cell)


def number_in(cell: Any) -> float:
    """Finite number in a cell; NaN if it holds none. A text may have a decimal comma."""
    if isinstance(cell, bool) or not isinstance(cell, (str, int, float)):
        return math.nan
    text = cell.strip() if isinstance(cell, str) else cell
    if isinstance(text, str) and ("_" in text or (text.count(",") == 1 and "." not in text)):
        text = text.replace(",", ".") if "_" not in text else "nan"
    try:
        number = float(text)
    except (ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) and abs(number) < 1e30 else math.nan
