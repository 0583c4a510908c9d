"""Read time series from a table: one array per series, on a grid of evenly spaced steps."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv.data.cells.numbers import is_empty, read_numbers, too_many
from qkv.data.cells.stamps import NUMBER, StampForm, Stamps, read_stamps
from qkv.data.cells.steps import DAY, Step, guess_step
from qkv.data.reading import identity_of_data, read_once
from qkv.data.records.formats import table_of
from qkv.data.records.named import TABLES, named_tables
from qkv.data.records.table import Row, Table
from qkv.data.series.columns import SeriesColumns, choose_columns, guess_names, with_names
from qkv.spec.data import Data, Decimal
from qkv.spec.signals.series import Series
from qkv.system.errors import UserError

_MOST_CELLS = 50
"""Maximum number of steps per row, on average; a table that needs more is refused: its step is probably wrong."""
_DATA = "data"
"""Name of the data of a recipe; messages suggest options only for this data."""
_LARGEST = 1e30
"""Absolute value at and above which a number is refused."""
_SAME = 1e-6
"""Fraction of a step up to which two positions within a step count as the same position."""


class OneSeries(NamedTuple):
    """One series on the common grid.

    ``first``: index of its first step; ``values`` (T, C) and ``known`` (T', K): NaN where missing; ``stamps`` (T'):
    time stamps of the rows, and of evenly spaced steps where there is no row. T' exceeds T if covariates are known for
    future steps, after the last value. ``offsets`` (T'): seconds by which local times are ahead of the stamps;
    ``zone``: time zone of the last row, as written there.
    """

    name: str
    first: int
    values: np.ndarray
    known: np.ndarray
    stamps: np.ndarray
    offsets: np.ndarray
    zone: str = ""

    @property
    def length(self) -> int:
        """Number of steps up to the last value."""
        return len(self.values)

    @property
    def local(self) -> np.ndarray:
        """Local times (T') of the stamps in seconds since 1970."""
        return self.stamps + self.offsets


class Panel(NamedTuple):
    """Series of one table. ``form``: how time stamps are written; ``days``: the stamps are dates without a time of the
    day.

    ``decimal``: decimal mark in the table's columns; None if both marks are used, or if no number has one.
    """

    name: str
    columns: SeriesColumns
    step: Step
    form: StampForm
    days: bool
    series: tuple[OneSeries, ...]
    notes: tuple[str, ...]
    decimal: Decimal | None = None

    def digest(self) -> str:
        """Return the SHA-256 of all values and their positions in time, in hexadecimal."""
        step = f"Step(unit={self.step.unit!r}, size={self.step.size!r})"
        total = hashlib.sha256(f"({self.columns[:4]!r}, {step})".encode())
        for each in self.series:
            total.update(f"{each.name} {each.first} {each.values.shape}".encode())
            for array in (each.values, each.known, each.stamps):
                total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()

    def text(self, each: OneSeries, index: int) -> Any:
        """Write the time stamp of a step of a series in the form of the table."""
        return self.form.text(float(each.stamps[index]), self.days, each.zone, float(each.offsets[index]))

    def when(self, place: int) -> str:
        """Return the time stamp at index ``place`` of the common grid, for messages; the index itself if no series
        covers it.
        """
        entry = next((each for each in self.series if 0 <= place - each.first < len(each.stamps)), None)
        return f"step {place}" if entry is None else str(self.text(entry, place - entry.first))


@read_once(lambda data, learned=None, where="data": (identity_of_data(data), learned))
def read_panel(data: Data, learned: Series | None = None, where: str = "data") -> Panel:
    """Read the series in ``data.source``: a named data set or a table.

    ``learned``: processor of a trained model, whose step and form of time stamps are used; default: the most frequent
    step, and the form that fits the cells. Rows are sorted by time. Steps without a row and empty cells are missing
    values (NaN). If several rows fall into one step, the row nearest to the step is kept. The notes report both.

    Raises ``UserError`` for two rows with one time stamp, for unreadable time stamps, for a table without numbers, and
    for a column in which more than a small fraction of the cells holds no number.
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
    return _Reader(table, columns, rows, data, where).panel(learned, notes)


class _Reader:
    def __init__(self, table: Table, columns: SeriesColumns, rows: Sequence[Row], data: Data, where: str):
        self.table, self.columns, self.rows, self.data, self.where = table, columns, rows, data, where
        self.empty: dict[str, int] = {}

    def panel(self, learned: Series | None, notes: list[str]) -> Panel:
        stamps = self._stamps(learned, notes)
        groups = self._groups(stamps, notes)
        orders = {name: index[np.argsort(stamps.values[index], kind="stable")] for name, index in groups.items()}
        if any((orders[name] != index).any() for name, index in groups.items()):
            notes.append(f"the rows of {self.table.name} were not in order of time and have been sorted")
        self._refuse_twice(stamps, orders)
        step = self._step(learned, [stamps.values[order] for order in orders.values()], stamps.dates)
        read = _Columns(self.table, self.rows, self.data, self.where, notes)
        values, covariates = (read.numbers(names) for names in (self.columns.channels, self.columns.known))
        placed = {name: self._placed(order, stamps, step) for name, order in orders.items()}
        series = [self._series(name, orders[name], stamps, step, placed[name], values, covariates) for name in orders]
        notes += self._step_notes(series, stamps, step)
        notes += self._sharing(orders, placed, stamps)
        notes += self._gaps(series, values, read.wrong)
        days = stamps.dates and bool((stamps.values % DAY == 0).all())
        form = self._plain(stamps.form) if days else stamps.form
        return Panel(self.table.name, self.columns, step, form, days, tuple(series), tuple(notes), read.decimal)

    def _plain(self, form: StampForm) -> StampForm:
        """Return the form of time stamps that are dates without a time of the day.

        For a table from memory, whose dates are objects and not texts, the form then omits the time of the day.
        """
        style = form.style
        if not self.table.given or form.zone or style is None or not form.name.startswith("%Y-%m-%d"):
            return form
        return form._replace(style=style._replace(gap="", clock=""))

    def _groups(self, stamps: Stamps, notes: list[str]) -> dict[str, np.ndarray]:
        """Return the row indices of each series; guess the column of the series' names if rows share time stamps."""
        several = self.columns.series is None and self.columns.time is not None
        if several and len(np.unique(stamps.values)) < len(stamps.values):
            name = guess_names(self.rows, self.columns, stamps.values, self.data.columns)
            if name is not None and with_names(self.columns, name).channels:
                self.columns = with_names(self.columns, name)
                notes.append(f"{name!r} as the names of the series (guessed, since rows share time stamps)")
        rows: dict[str, list[int]] = {}
        for i, row in enumerate(self.rows):
            rows.setdefault(self._name(row), []).append(i)
        if self.columns.time is None:
            for index in rows.values():
                stamps.values[index] = np.arange(len(index))
        return {name: np.array(index) for name, index in rows.items()}

    def _name(self, row: Row) -> str:
        if self.columns.series is None:
            return ""
        cell = row.values.get(self.columns.series)
        return "" if cell is None else str(cell).strip()

    def _step(self, learned: Series | None, stamps: Sequence[np.ndarray], dates: bool) -> Step:
        if self.columns.time is None:
            return Step("rows", 1.0)
        if learned is not None and (learned.unit == "number") == dates:
            was, guess = ("numbers", "dates") if dates else ("dates", "numbers")
            raise UserError(
                f"the time stamps of {self.table.name} are {guess}, but the model was trained on {was}; write them "
                "as in training"
            )
        if learned is not None:
            guess = Step(learned.unit or "rows", learned.step or 1.0, weekdays=learned.weekdays)
        else:
            guess = guess_step(stamps, dates)
        if guess is None:
            raise UserError(f"{self.table.name} has one row per series, but a series needs two; give more rows")
        return guess.anchored(np.concatenate(list(stamps)))

    def _step_notes(self, series: Sequence[OneSeries], stamps: Stamps, step: Step) -> list[str]:
        """Return sentences on the form of the time stamps, the step, and steps without a row."""
        if self.columns.time is None:
            return []
        cells = [row.values.get(self.columns.time) for row in self.rows]
        note = stamps.note(cells, f"{self.where}.processor.dates" if self.where == _DATA else "")
        steps = sum(len(each.stamps) for each in series)
        there = steps - sum(self._empty_steps(each) for each in series)
        gaps = f"{steps - there:,} of {steps:,} time stamps are missing between the first and the last"
        return [*([note] if note else []), f"a step is {step.words}", *([gaps] if steps > there else [])]

    def _gaps(self, series: Sequence[OneSeries], values: np.ndarray, wrong: int) -> list[str]:
        """Return sentences on missing values. Raises ``UserError`` for missing values if bad rows are to be refused."""
        notes = list[str]()
        gaps = int(np.isnan(values).sum()) - wrong
        if gaps > 0:
            text = f"{gaps:,} of {values.size:,} values of {self.table.name} are missing"
            if self.data.bad_rows == "refuse":
                raise UserError(f"{text}; fill them in, or accept gaps with {self.where}.bad_rows=skip")
            notes.append(text)
        if gaps > 0 or wrong or any(self._empty_steps(each) for each in series):
            notes.append("inputs repeat the last value before a missing value; missing values are not predicted")
        return notes

    def _empty_steps(self, each: OneSeries) -> int:
        return self.empty[each.name]

    def _stamps(self, learned: Series | None, notes: list[str]) -> Stamps:
        name = self.columns.time
        if name is None:
            return Stamps(np.zeros(len(self.rows)), StampForm(NUMBER))
        cells = [row.values.get(name) for row in self.rows]
        preferred = getattr(self.data.processor, "dates", None) if learned is None else None
        stamps = read_stamps(cells, preferred or (learned and learned.dates))
        wrong = np.flatnonzero(~np.isfinite(stamps.values))
        if preferred and stamps.form.name != preferred:
            raise UserError(
                f"{self.where}.processor.dates: the format {preferred!r} does not fit {cells[0]!r} in the column "
                f"{name!r}"
            )
        if len(wrong):
            first = self.rows[wrong[0]]
            raise UserError(
                f"{len(wrong):,} of {len(cells):,} time stamps in the column {name!r} of {self.table.name} cannot be "
                f"read, such as {cells[wrong[0]]!r} in {self.table.place(first.line)}; write dates as 2024-01-31, or "
                "2024-01-31 12:00:00, all with a time zone or none"
            )
        return stamps

    def _refuse_twice(self, stamps: Stamps, orders: Mapping[str, np.ndarray]) -> None:
        for order in orders.values():
            twice = np.flatnonzero(np.diff(stamps.values[order]) == 0)
            if len(twice):
                row, other = (self.rows[int(order[twice[0] + i])] for i in range(2))
                cell = row.values.get(self.columns.time or "")
                raise UserError(
                    f"{self.table.name} has two rows with the time {cell!r}, {self.table.place(row.line)} and "
                    f"{self.table.place(other.line)}; remove one, or name the column that tells several series apart "
                    f"({self.where}.columns.series)"
                )

    def _placed(self, order: np.ndarray, stamps: Stamps, step: Step) -> tuple[int, np.ndarray, np.ndarray]:
        """Place the rows of one series on the grid.

        Returns (index of the first step on the common grid, steps of the rows counted from there, distances of the rows
        from their steps). The most frequent position of rows within a step decides where steps lie, so that a row that
        is early or late does not shift the others.
        """
        exact = step.places(stamps.values[order])
        shares, counts = np.unique(np.round((exact - exact[0]) % 1 / _SAME).astype(np.int64), return_counts=True)
        phase = float(exact[0] + shares[counts.argmax()] * _SAME) % 1
        phase -= phase > 0.5
        places = np.round(exact - phase).astype(np.int64)
        return int(places[0]), places - places[0], np.abs(exact - phase - places)

    def _sharing(
        self, orders: Mapping[str, np.ndarray], placed: Mapping[str, tuple[int, np.ndarray, np.ndarray]], stamps: Stamps
    ) -> list[str]:
        """Return a sentence on rows that share their step with another row."""
        shared, first = 0, None
        for name, order in orders.items():
            again = np.flatnonzero(np.diff(placed[name][1]) == 0) + 1
            shared += len(again)
            first = order[again[0]] if first is None and len(again) else first
        if first is None:
            return []
        row = self.rows[int(first)]
        return [
            f"{shared:,} of {len(self.rows):,} rows share their step with another row, such as "
            f"{row.values.get(self.columns.time or '')!r} in {self.table.place(row.line)}; only the row nearest to a "
            "step is used"
        ]

    def _series(
        self,
        name: str,
        order: np.ndarray,
        stamps: Stamps,
        step: Step,
        placed: tuple[int, np.ndarray, np.ndarray],
        values: np.ndarray,
        covariates: np.ndarray,
    ) -> OneSeries:
        """Build the series ``name`` on the grid, with each row at its step. Rows after the last value only provide
        covariates.
        """
        first, places, away = placed
        times, count = stamps.values[order], int(places[-1]) + 1
        if count > _MOST_CELLS * len(order) + 100:
            raise UserError(
                f"the usual time between rows of {self.table.name} is {step.words}, and its {len(order):,} rows "
                f"would span {count:,} such steps; give rows that are spaced more evenly"
            )
        cells = [np.full((count, array.shape[1]), np.nan) for array in (values, covariates)]
        later = np.lexsort((-away, places))  # of several rows in a step, the nearest is written last
        for cell, array in zip(cells, (values, covariates), strict=True):
            cell[places[later]] = array[order[later]]
        grid = np.asarray([times[0], *step.following(float(times[0]), count - 1)])
        grid[places[later]] = times[later]
        offsets = np.zeros(count)
        if stamps.offsets is not None:
            before = np.searchsorted(places, np.arange(count), side="right") - 1
            offsets = stamps.offsets[order][before]
        seen = np.flatnonzero(~np.isnan(cells[0]).all(1))
        end = int(seen[-1]) + 1 if len(seen) else 0
        zone = stamps.zones[order[-1]] if stamps.zones else ""
        self.empty[name] = count - len(np.unique(places))
        return OneSeries(name, first, cells[0][:end], cells[1], grid, offsets, zone)


class _Columns:
    """Reader of columns of numbers.

    ``wrong``: number of cells so far that hold something else, which ``notes`` report; ``marks``: decimal marks of the
    columns that show one.
    """

    def __init__(self, table: Table, rows: Sequence[Row], data: Data, where: str, notes: list[str]):
        self.table, self.rows, self.data, self.where, self.notes = table, rows, data, where, notes
        self.wrong, self.marks = 0, set[str]()

    @property
    def decimal(self) -> Decimal | None:
        """Decimal mark, if it is the same in all columns that show one."""
        if len(self.marks) != 1:
            return None
        return "comma" if "," in self.marks else "point"

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Read the numbers (rows, columns) of some columns; NaN where a cell is empty or, rarely, holds something else.

        Raises ``UserError`` for a column without numbers, with too many other cells, or that can be read in two ways.
        """
        columns = [self._column(name) for name in names]
        return np.stack(columns, 1) if columns else np.zeros((len(self.rows), 0))

    def _column(self, name: str) -> np.ndarray:
        cells = [row.values.get(name) for row in self.rows]
        column = read_numbers(cells, self.data.decimal, self.table.missing)
        values, form = np.array(column.values), column.form
        if form.question:
            raise UserError(
                f"{self.table.name}: {form.doubt(name, f'{self.where}.decimal' if self.where == _DATA else '')}"
            )
        large = np.flatnonzero(np.abs(np.nan_to_num(values)) >= _LARGEST).tolist()
        values[large] = np.nan
        wrong = sorted({*column.wrong, *large})
        if wrong:
            self._tell(name, cells, wrong, sum(not is_empty(cell) for cell in cells))
        if np.isnan(values).all():
            raise UserError(f"the column {name!r} of {self.table.name} holds no number; name another column")
        if form.example:
            self.notes.append(form.note(name))
        if form.shows:
            self.marks.add(form.decimal)
        return values

    def _tell(self, name: str, cells: Sequence[Any], wrong: Sequence[int], filled: int) -> None:
        row = self.rows[wrong[0]]
        text = (
            f"{len(wrong):,} of {len(cells):,} cells of the column {name!r} of {self.table.name} are not numbers, such "
            f"as {cells[wrong[0]]!r} in {self.table.place(row.line)}"
        )
        if too_many(len(wrong), filled) or self.data.bad_rows == "refuse":
            raise UserError(f"{text}; correct them, leave them empty, or name another column")
        self.wrong += len(wrong)
        self.notes.append(f"{text}; they count as missing values")


def ahead(each: OneSeries, step: Step, horizon: int) -> OneSeries:
    """Extend a series by the time stamps, and the covariates as far as they are known, of ``horizon`` steps after its
    last value.
    """
    end = each.length + horizon
    missing = max(0, end - len(each.stamps))
    stamps = np.concatenate((each.stamps, step.following(float(each.stamps[-1]), missing)))[:end]
    offsets = np.concatenate((each.offsets, np.repeat(each.offsets[-1:], missing)))[:end]
    covariates = np.concatenate((each.known, np.full((missing, each.known.shape[1]), np.nan)))[:end]
    return each._replace(stamps=stamps, offsets=offsets, known=covariates)
