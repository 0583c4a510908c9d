"""Reading of time series from a table: one array per series, on a grid of evenly spaced steps."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv.data.reading import identity_of_data, read_once
from qkv.data.records.formats import table_of
from qkv.data.records.named import TABLES, named_tables
from qkv.data.records.table import Row, Table
from qkv.data.series.columns import SeriesColumns, choose_columns, is_empty, number_in
from qkv.data.series.stamps import Stamps, Step, guess_step, read_stamps
from qkv.spec.data import Data
from qkv.spec.errors import UserError

_MOST_CELLS = 50
"""Largest number of steps per row, beyond which a table is refused: its step is wrong."""
_SHOWN = 3


class OneSeries(NamedTuple):
    """One series on the common grid: ``first``, index of its first step; ``values`` (T, C) and ``known`` (T, K), NaN
    where missing; ``stamps`` (T) of the rows, of evenly spaced steps where there is none.

    Known columns may go on behind the last value: K of ``future`` steps, by ``stamps`` too.
    """

    name: str
    first: int
    values: np.ndarray
    known: np.ndarray
    stamps: np.ndarray

    @property
    def length(self) -> int:
        """Number of steps up to the last value."""
        return len(self.values)


class Panel(NamedTuple):
    """Series of one table. ``dates``: stamps are seconds since 1970; ``days``: without the time of the day."""

    name: str
    columns: SeriesColumns
    step: Step
    dates: bool
    days: bool
    series: tuple[OneSeries, ...]
    notes: tuple[str, ...]

    def digest(self) -> str:
        """SHA-256 of all values and their places, in hexadecimal."""
        total = hashlib.sha256(repr((self.columns[:4], self.step)).encode())
        for each in self.series:
            total.update(f"{each.name} {each.first} {each.values.shape}".encode())
            for array in (each.values, each.known, each.stamps):
                total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()


@read_once(lambda data, step=None, where="data": (identity_of_data(data), step))
def read_panel(data: Data, step: Step | None = None, where: str = "data") -> Panel:
    """Read the series in ``data.source``: a named data set or a table.

    ``step``: time between two steps; default: the most frequent one. Rows are sorted by time. Steps without a row, and
    cells without a number, are missing (NaN), which the notes tell. Raises ``UserError`` for two rows of one time
    stamp, for unreadable time stamps, and for a table without numbers.
    """
    if data.source in TABLES:
        table = named_tables(data.source)["train"]
    else:
        table = table_of(data.source, data, (), f"{where}.source", tuple(TABLES))
    rows = [row for row in table.rows if isinstance(row, Row)]
    if not rows:
        raise UserError(f"{table.name} has no rows")
    columns = choose_columns(table, data.columns, where)
    notes = [*table.notes, *([columns.note] if columns.note else [])]
    if len(rows) < len(table.rows):
        bad = [row for row in table.rows if not isinstance(row, Row)]
        notes.append(f"{len(bad):,} rows of {table.name} were skipped: {table.place(bad[0].line)}: {bad[0].reason}")
    return _Reader(table, columns, rows, where).panel(step, notes, data.bad_rows == "refuse")


class _Reader:
    def __init__(self, table: Table, columns: SeriesColumns, rows: Sequence[Row], where: str):
        self.table, self.columns, self.rows, self.where = table, columns, rows, where
        found: dict[str, list[int]] = {}
        for i, row in enumerate(rows):
            found.setdefault(self._name(row), []).append(i)
        self.groups = {name: np.array(index) for name, index in found.items()}

    def _name(self, row: Row) -> str:
        return "" if self.columns.series is None else str(row.values.get(self.columns.series) or "").strip()

    def panel(self, step: Step | None, notes: list[str], refuse: bool) -> Panel:
        stamps = self._stamps()
        orders = {name: index[np.argsort(stamps.values[index], kind="stable")] for name, index in self.groups.items()}
        moved = sum(int((orders[name] != index).sum()) for name, index in self.groups.items())
        if moved:
            notes.append(f"the rows of {self.table.name} were not in order of time and have been sorted")
        self._refuse_twice(stamps, orders)
        if self.columns.time is None:
            step = Step("rows", 1.0)
        step = step or guess_step([stamps.values[order] for order in orders.values()], stamps.dates)
        if step is None:
            raise UserError(f"{self.table.name} has one row for each series, which is none; give more rows")
        values, known = (self._numbers(names) for names in (self.columns.channels, self.columns.known))
        made = [self._series(name, order, stamps, step, values, known) for name, order in orders.items()]
        notes += self._gaps(made, values, step, refuse)
        days = stamps.dates and bool((stamps.values % 86400 == 0).all())
        return Panel(self.table.name, self.columns, step, stamps.dates, days, tuple(made), tuple(notes))

    def _gaps(self, made: Sequence[OneSeries], values: np.ndarray, step: Step, refuse: bool) -> list[str]:
        """Sentences on the step, and on missing rows and values. Raises ``UserError`` for these if ``refuse``."""
        notes = [f"a step is {step.words}"] if self.columns.time is not None else []
        steps, rows = sum(len(each.stamps) for each in made), len(self.rows)
        if steps > rows:
            notes.append(f"{steps - rows:,} of {steps:,} time stamps are missing between the first and the last")
        gaps = int(np.isnan(values).sum())
        if gaps > 0:
            text = f"{gaps:,} of {values.size:,} values of {self.table.name} are missing"
            if refuse:
                raise UserError(f"{text}; fill them in, or accept gaps with {self.where}.bad_rows=skip")
            notes.append(text)
        if gaps > 0 or steps > rows:
            notes.append("where the model reads a missing value, it is the one before; none is a target")
        return notes

    def _stamps(self) -> Stamps:
        name = self.columns.time
        if name is None:
            counts = np.zeros(len(self.rows))
            for index in self.groups.values():
                counts[index] = np.arange(len(index))
            return Stamps(counts, False)
        cells = [row.values.get(name) for row in self.rows]
        stamps = read_stamps(cells)
        wrong = np.flatnonzero(~np.isfinite(stamps.values))
        if len(wrong):
            first = self.rows[wrong[0]]
            raise UserError(
                f"{len(wrong):,} of {len(cells):,} time stamps in the column {name!r} of {self.table.name} cannot be "
                f"read, such as {cells[wrong[0]]!r} in {self.table.place(first.line)}; write dates as 2024-01-31, or "
                "2024-01-31 12:00:00"
            )
        return stamps

    def _refuse_twice(self, stamps: Stamps, orders: Mapping[str, np.ndarray]) -> None:
        for order in orders.values():
            twice = np.flatnonzero(np.diff(stamps.values[order]) == 0)
            if len(twice):
                row, other = (self.rows[int(order[twice[0] + i])] for i in range(2))
                cell = row.values.get(self.columns.time or "")
                raise UserError(
                    f"{self.table.name} has two rows of the time {cell!r}, {self.table.place(row.line)} and "
                    f"{self.table.place(other.line)}; remove one, or name the column that tells several series apart "
                    f"({self.where}.columns.series)"
                )

    def _numbers(self, names: Sequence[str]) -> np.ndarray:
        """Numbers (rows, columns) of some columns; NaN where a cell is empty. Raises ``UserError`` for other cells if
        they are many.
        """
        found = np.full((len(self.rows), len(names)), np.nan)
        for j, name in enumerate(names):
            cells = [row.values.get(name) for row in self.rows]
            empty = [is_empty(cell) or cell in self.table.missing for cell in map(_hashable, cells)]
            found[:, j] = [np.nan if none else number_in(cell) for cell, none in zip(cells, empty, strict=True)]
            wrong = np.flatnonzero(np.isnan(found[:, j]) & ~np.array(empty))
            if 2 * len(wrong) > len(cells):
                row = self.rows[wrong[0]]
                raise UserError(
                    f"{len(wrong):,} of {len(cells):,} cells of the column {name!r} of {self.table.name} are no "
                    f"numbers, such as {cells[wrong[0]]!r} in {self.table.place(row.line)}; name another column"
                )
            if np.isnan(found[:, j]).all():
                raise UserError(f"the column {name!r} of {self.table.name} holds no number; name another column")
        return found

    def _series(
        self, name: str, order: np.ndarray, stamps: Stamps, step: Step, values: np.ndarray, known: np.ndarray
    ) -> OneSeries:
        """Series ``name`` on the grid; each row is at the step nearest to its time stamp. Of rows behind the last value
        only the covariates are known.
        """
        times = stamps.values[order]
        exact = step.places(times)
        places = np.round(exact - exact[0]).astype(np.int64)
        count = int(places[-1]) + 1
        if count > _MOST_CELLS * len(order) + 100:
            raise UserError(
                f"the rows of {self.table.name} are {step.words} apart at best and {count:,} steps at most, for "
                f"{len(order):,} rows; give rows that are spaced more evenly"
            )
        cells = [np.full((count, array.shape[1]), np.nan) for array in (values, known)]
        grid = np.asarray([times[0], *step.following(float(times[0]), count - 1)])
        for cell, array in zip(cells, (values, known), strict=True):
            later = np.argsort(places, kind="stable")
            cell[places[later]] = array[order[later]]
        grid[places] = times
        seen = np.flatnonzero(~np.isnan(cells[0]).all(1))
        end = int(seen[-1]) + 1 if len(seen) else 0
        first = round(float(exact[0]))
        return OneSeries(name, first, cells[0][:end], cells[1], grid)


def ahead(each: OneSeries, step: Step, horizon: int) -> OneSeries:
    """Series with time stamps, and covariates as far as they are known, of ``horizon`` steps after its last value."""
    end = each.length + horizon
    missing = max(0, end - len(each.stamps))
    stamps = np.concatenate((each.stamps, step.following(float(each.stamps[-1]), missing)))[:end]
    known = np.concatenate((each.known, np.full((missing, each.known.shape[1]), np.nan)))[:end]
    return each._replace(stamps=stamps, known=known)


def _hashable(cell: Any) -> Any:
    return cell if isinstance(cell, (str, int, float, type(None))) else str(cell)
