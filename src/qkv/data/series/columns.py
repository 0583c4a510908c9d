"""Columns of a table of time series: time stamps, names of series, values, and covariates known in advance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv.data.cells.numbers import is_empty, number_form
from qkv.data.cells.stamps import read_stamps
from qkv.data.records.table import Row, Table
from qkv.system.errors import UserError, nearest

ROLES = ("time", "series", "value", "known")
_TIMES = (
    *("time", "date", "datetime", "timestamp", "ds", "day", "month", "week", "year", "quarter", "index", "hour"),
    *("period", "yearmonth", "yyyymm", "yyyymmdd", "datum", "zeit", "tag", "monat", "jahr", "fecha", "jour", "mois"),
)
_NAMES = ("unique_id", "series", "series_id", "id", "item_id", "item", "name", "store", "shop", "sensor", "key")
_SAMPLE = 200
_MOSTLY = 0.9


class SeriesColumns(NamedTuple):
    """Columns of a table by their role. ``note``: sentence on the guessed columns, "" if none was guessed."""

    time: str | None
    series: str | None
    channels: tuple[str, ...]
    known: tuple[str, ...]
    note: str = ""


def choose_columns(table: Table, settings: Mapping[str, str], where: str) -> SeriesColumns:
    """Choose the columns of a table of series: by role as in ``settings``, else guessed.

    Time: a column of dates, or of numbers with a usual name. Values: all other columns of numbers. Names of series and
    covariates are never guessed. Raises ``UserError`` for an unknown column or role, and without a column of values.
    """
    wrong = next((role for role in settings if role not in ROLES), None)
    if wrong is not None:
        raise UserError(f"{where}.columns: there is no role {wrong!r}; {nearest(wrong, ROLES)}")
    named = {role: _several(table, names, f"{where}.columns.{role}") for role, names in settings.items()}
    for role in ("time", "series"):
        if len(named.get(role, ())) > 1:
            raise UserError(f"{where}.columns.{role}: {settings[role]!r} names several columns; name one")
    sample = {name: _cells(table, name, _SAMPLE) for name in table.columns}
    used_columns = {name for names in named.values() for name in names}
    time = named.get("time", ()) or _time(sample, used_columns)
    free = [name for name in table.columns if name not in {*used_columns, *time}]
    channels = named.get("value", ()) or tuple(name for name in free if _is_numeric(sample[name]))
    if not channels:
        raise UserError(
            f"{table.name} has no column of numbers to forecast; its columns are {', '.join(table.columns)}"
        )
    guesses = [f"{time[0]!r} as the time"] if time and "time" not in named else []
    if "value" not in named:
        names = ", ".join(map(repr, channels[:8])) + (f" and {len(channels) - 8} more" if len(channels) > 8 else "")
        guesses.append(f"{names} as the values")
    note = f"{' and '.join(guesses)} (guessed)" if guesses else ""
    single = {role: next(iter(names), None) for role, names in (("time", time), ("series", named.get("series", ())))}
    return SeriesColumns(single["time"], single["series"], channels, named.get("known", ()), note)


def _several(table: Table, names: str, where: str) -> tuple[str, ...]:
    """Split a setting into column names: one name, or several separated by commas."""
    columns = (names,) if names in table.columns else tuple(name.strip() for name in names.split(",") if name.strip())
    for name in columns:
        if name not in table.columns:
            raise UserError(f"{where}: {table.name} has no column {name!r}; {nearest(name, table.columns)}")
    if not columns or len(set(columns)) < len(columns):
        raise UserError(f"{where}: {names!r} given; name each column once, with commas between them")
    return columns


def _time(sample: Mapping[str, Sequence[Any]], used_columns: set[str]) -> tuple[str, ...]:
    """Guess the column of the time stamps; return it as a tuple of one name, or ()."""
    for name, cells in sample.items():
        if name in used_columns or not cells:
            continue
        stamps = read_stamps(cells)
        named, texts = name.strip().lower() in _TIMES, not _is_numeric(cells)
        if (named and stamps.readable > 0.5) or (stamps.dates and texts and stamps.readable >= _MOSTLY):
            return (name,)
    return ()


def _is_numeric(cells: Sequence[Any]) -> bool:
    filled = [cell for cell in cells if not is_empty(cell)]
    form = number_form(filled)
    return bool(filled) and np.isfinite([form.read(cell) for cell in filled]).mean() >= _MOSTLY


def _cells(table: Table, name: str, most: int) -> list[Any]:
    rows = (row for row in table.rows[: 5 * most] if isinstance(row, Row))
    cells = [row.values.get(name) for row in rows]
    return [None if cell in table.missing else cell for cell in cells if not is_empty(cell)][:most]


def guess_names(
    rows: Sequence[Row], columns: SeriesColumns, stamps: np.ndarray, settings: Mapping[str, str]
) -> str | None:
    """Guess the column with the names of the series when rows share time stamps; None if no column separates the
    series.

    In this column, no two rows with the same name have the same time stamp. A column of numbers also needs a usual
    name, or as many different numbers as the largest number of rows that share a time stamp.
    """
    used_columns = {columns.time, *columns.known, *(columns.channels if "value" in settings else ())}
    most = int(np.unique(stamps, return_counts=True)[1].max())
    for name in rows[0].values:
        cells = [str(row.values.get(name)).strip() for row in rows]
        distinct = set(cells)
        if (
            name in used_columns
            or not 1 < len(distinct) <= len(rows) // 2
            or len(set(zip(cells, stamps, strict=True))) < len(rows)
        ):
            continue
        numeric = _is_numeric([row.values.get(name) for row in rows[:_SAMPLE]])
        if not numeric or len(distinct) == most or name.strip().lower() in _NAMES:
            return name
    return None


def with_names(columns: SeriesColumns, name: str) -> SeriesColumns:
    """Return the columns with ``name`` as the column of series names, and no longer among the values."""
    channels = tuple(channel for channel in columns.channels if channel != name)
    return columns._replace(series=name, channels=channels)
