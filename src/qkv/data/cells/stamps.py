"""Time stamps of series: recognise the form of a column from all of its cells, read the stamps, and write further
stamps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np

from qkv.data.cells.dates import (
    EPOCH,
    EXCHANGED,
    PATTERNS,
    WEAK,
    StampCell,
    Style,
    day_in,
    in_words,
    is_pattern,
    split_cell,
    style_of,
)
from qkv.data.cells.steps import DAY, unevenness
from qkv.data.cells.zones import offset_at, offset_of

NUMBER, EXCEL = "number", "excel"
_UNIX = {"unix": 1.0, "unix ms": 1e3, "unix us": 1e6, "unix ns": 1e9}
"""Name of a unit of time since 1970 -> number of such units per second."""
_RANGE = (1e9, 4.1e9)
"""Range of numbers that are read as seconds since 1970: from 2001 to 2099."""
_YEARS = (-70 * 365.25 * DAY, 131 * 365.25 * DAY)
_EXCEL_RANGE, _EXCEL_EPOCH = (14_000, 73_051), 25_569
_SAMPLE = 200


class StampForm(NamedTuple):
    """Spelling of the time stamps of a column.

    ``name``: pattern of dates, "number", "unix" and its fractions (seconds since 1970), or "excel" (days since 1900).
    ``style``: how a date is written in this form, None for ISO 8601. ``zone``: time zone of the last row as written
    there, "" if it has none; ``offset``: seconds by which the local time of the last row is ahead of its value.
    ``whole``: the cells are numbers, not texts.
    """

    name: str
    style: Style | None = None
    zone: str = ""
    offset: float = 0.0
    whole: bool = False

    @property
    def dates(self) -> bool:
        """True if the values are seconds since 1970, in local time or UTC."""
        return self.name != NUMBER

    def text(self, stamp: float, days: bool = False, zone: str | None = None, offset: float | None = None) -> Any:
        """Write a time stamp in the form of the column, as a text or a number. ``days``: no date has a time of the day.

        ``zone``, ``offset``: zone and offset to use instead of the column's, for another series.
        """
        if self.name in (NUMBER, EXCEL, *_UNIX):
            return _as_number(stamp, self.name)
        zone, offset = self.zone if zone is None else zone, self.offset if offset is None else offset
        local = EPOCH + timedelta(seconds=stamp + offset_at(zone, stamp, offset) if offset else stamp)
        if self.style is not None:
            text = f"{self.style.write(local)}{zone}"
            return int(text) if self.whole else text
        if days and not zone:
            return local.date().isoformat()
        return f"{local.isoformat(sep=' ')}{zone}"


def _as_number(stamp: float, name: str) -> float | int:
    if name == EXCEL:
        stamp = round(stamp / DAY + _EXCEL_EPOCH, 6)
    scale = _UNIX.get(name, 1.0)
    if stamp == int(stamp):
        return int(stamp) * int(scale)
    return stamp * scale


class Stamps(NamedTuple):
    """Time stamps as numbers: seconds since 1970 if ``form.dates``, else the numbers in the cells; NaN if they cannot
    be read.

    If the cells have zones with different offsets, the values are UTC, unless all cells have the same local time of the
    day. ``offsets``: seconds by which the local time of each cell is ahead of its value; ``zones``: zones as written.
    Both are None if no cell has a zone. ``other``: name of another form that fits all cells too, "" if there is none.
    """

    values: np.ndarray
    form: StampForm
    zones: tuple[str, ...] | None = None
    offsets: np.ndarray | None = None
    other: str = ""

    @property
    def dates(self) -> bool:
        """True if the values are seconds since 1970."""
        return self.form.dates

    @property
    def readable(self) -> float:
        """Fraction of cells that can be read."""
        return float(np.isfinite(self.values).mean()) if len(self.values) else 0.0

    def note(self, cells: Sequence[Any], option: str) -> str:
        """Return a sentence on a form that is not ISO 8601, else "". ``option``: name of the option that sets another
        form, or "".
        """
        name, first = self.form.name, int(np.isfinite(self.values).argmax())
        clear = not (self.other or name.startswith(EXCHANGED) or _number(cells[first]) == _number(cells[first]))
        if name == NUMBER or clear:
            return ""
        moment = EPOCH + timedelta(seconds=float(self.values[first]))
        form = in_words(name) if "%" in name else "days since 1900" if name == EXCEL else "time since 1970"
        sentence = f"time stamps are read as {form}, such as {cells[first]} as {moment.isoformat(sep=' ')}"
        sentence = sentence.removesuffix(" 00:00:00")
        way = f" ({option}={self.other})" if option else ""
        return sentence + (f"; {in_words(self.other)} is possible too{way}" if self.other else "")


class _Reading(NamedTuple):
    name: str
    values: np.ndarray
    missing: int = 0


def read_stamps(cells: Sequence[Any], preferred: str | None = None, utc: bool = False) -> Stamps:
    """Read the cells of a column as numbers or dates, in the form that reads most cells.

    If several forms do, for example with day and month exchanged, ``preferred`` is used. Otherwise the form with the
    fewest missing steps between the first and the last cell is used, else the first form in ``PATTERNS``. ``utc``: if
    some cells have a zone, cells without a zone are read as UTC instead of being unreadable.
    """
    numbers = np.array([_number(cell) for cell in cells])
    if np.isfinite(numbers).mean() > 0.5 if len(numbers) else False:
        return _numeric(cells, numbers, preferred)
    split = [_split(cell) for cell in cells]
    dates = [None if each is None else each.date for each in split]
    clocks = np.array([math.nan if each is None else each.seconds for each in split])
    readings = [reading._replace(values=reading.values + clocks) for reading in _readings(dates, preferred)]
    if not readings:
        return Stamps(np.full(len(cells), math.nan), StampForm(PATTERNS[0]))
    chosen, other = _choose(readings, preferred)
    return _with_zones(chosen, [each or StampCell("") for each in split], other, utc)


def _numeric(cells: Sequence[Any], numbers: np.ndarray, preferred: str | None) -> Stamps:
    """Read cells of numbers as plain numbers, as dates in digits, or as time since 1970 or 1900."""
    whole = np.isfinite(numbers) & (numbers == np.floor(np.nan_to_num(numbers)))
    texts = [_digits(cell) if whole[i] or isinstance(cell, str) else None for i, cell in enumerate(cells)]
    readings = [each for each in _readings(texts, preferred) if _in_years(each.values)]
    numeric = [each for each in _scaled(numbers) if _in_years(each.values)]
    readings = [each for each in (*readings, *numeric) if np.isnan(each.values).sum() <= np.isnan(numbers).sum()]
    plain = _Reading(NUMBER, numbers)
    if preferred == NUMBER or not readings:
        return Stamps(numbers, StampForm(NUMBER))
    strong = [each for each in readings if each.name not in (*WEAK, EXCEL)]
    weak = [each for each in readings if each.name in (*WEAK, EXCEL)]
    chosen, other = _choose([*strong, plain, *weak], preferred)
    if chosen.name == NUMBER:
        return Stamps(numbers, StampForm(NUMBER))
    stamps = _with_zones(chosen, [StampCell(text or "") for text in texts], other)
    whole = not any(isinstance(cell, str) for cell in cells)
    return stamps._replace(form=stamps.form._replace(whole=whole))


def _in_years(values: np.ndarray) -> bool:
    """Return True if all dates are from 1900 to 2100, which is required of dates in digits."""
    finite = values[np.isfinite(values)]
    return bool(len(finite)) and bool((finite >= _YEARS[0]).all() and (finite <= _YEARS[1]).all())


def _scaled(numbers: np.ndarray) -> Iterator[_Reading]:
    finite = numbers[np.isfinite(numbers)]
    for name, scale in _UNIX.items():
        if (finite >= _RANGE[0] * scale).all() and (finite <= _RANGE[1] * scale).all():
            yield _Reading(name, numbers / scale)
    if (finite >= _EXCEL_RANGE[0]).all() and (finite <= _EXCEL_RANGE[1]).all():
        yield _Reading(EXCEL, (numbers - _EXCEL_EPOCH) * DAY)


def _readings(texts: Sequence[str | None], preferred: str | None) -> list[_Reading]:
    """Return the patterns that read most of the texts, with the values that they give, in the order of ``PATTERNS``."""
    step = max(1, len(texts) // _SAMPLE)
    sample = [text for text in texts[::step] if text is not None]
    patterns = [*([preferred] if preferred and is_pattern(preferred) else []), *PATTERNS]
    counts = {pattern: sum(not math.isnan(day_in(text, pattern)) for text in sample) for pattern in patterns}
    fitting = [pattern for pattern in counts if 2 * counts[pattern] > len(sample)]
    readings = [
        _Reading(pattern, np.array([math.nan if text is None else day_in(text, pattern) for text in texts]))
        for pattern in fitting
    ]
    least = min((int(np.isnan(each.values).sum()) for each in readings), default=0)
    return [each for each in readings if np.isnan(each.values).sum() == least]


def _choose(readings: Sequence[_Reading], preferred: str | None) -> tuple[_Reading, str]:
    """Return (best reading, name of another possible reading or "")."""
    several = list[_Reading]()
    for each in readings:
        if not any(np.array_equal(each.values, other.values, equal_nan=True) for other in several):
            several.append(each)
    if len(several) == 1:
        return several[0], ""
    scored = [each._replace(missing=_missing(each)) for each in several]
    best = min(scored, key=lambda each: (each.name != preferred, each.missing))
    alternatives = [each for each in scored if each is not best and "%" in each.name and each.name not in WEAK]
    return best, min(alternatives, key=lambda each: each.missing).name if alternatives else ""


def _missing(reading: _Reading) -> int:
    finite = np.unique(reading.values[np.isfinite(reading.values)])
    return unevenness(finite, reading.name != NUMBER) if len(finite) > 1 else 0


def _with_zones(reading: _Reading, cells: Sequence[StampCell], other: str, utc: bool = False) -> Stamps:
    """Build the stamps of a reading of local times, with their zones.

    If some cells have a zone and others do not, the smaller group is unreadable, unless ``utc``.
    """
    values, zones = reading.values, tuple(cell.zone for cell in cells)
    zoned = np.array([bool(zone.strip()) for zone in zones])
    if zoned.any():
        offsets = np.array(
            [offset_of(zone, wall) if wall == wall else math.nan for zone, wall in zip(zones, values, strict=True)]
        )
        values = np.where(utc | (zoned == (zoned.mean() >= 0.5)), values, math.nan)
        values = np.where(np.isnan(offsets), math.nan, values)
    indices = np.flatnonzero(np.isfinite(values))
    if not len(indices):
        return Stamps(values, StampForm(reading.name), other=other)
    tail = indices[np.argsort(values[indices], kind="stable")][-_SAMPLE:]
    style = _style(reading.name, [cells[i] for i in tail], values[tail])
    last = zones[tail[-1]]
    if not zoned.any():
        return Stamps(values, StampForm(reading.name, style), other=other)
    alike = len(np.unique(values[indices] % DAY)) == 1 or len(np.unique(offsets[indices])) == 1
    if alike:
        return Stamps(values, StampForm(reading.name, style, last), zones, np.zeros(len(values)), other)
    form = StampForm(reading.name, style, last, float(offsets[tail[-1]]))
    return Stamps(values - offsets, form, zones, offsets, other)


def _style(name: str, cells: Sequence[StampCell], values: np.ndarray) -> Style | None:
    """Find the style of a pattern; None if day and month are easily exchanged in it, so that ISO 8601 is written."""
    if "%" not in name or name.startswith(EXCHANGED):
        return None
    return style_of(cells, [EPOCH + timedelta(seconds=float(value)) for value in values], name)


def _number(cell: Any) -> float:
    if isinstance(cell, bool) or not isinstance(cell, (str, int, float)) or (isinstance(cell, str) and "_" in cell):
        return math.nan
    try:
        number = float(cell)
    except (ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _digits(cell: Any) -> str:
    return cell.strip().removesuffix(".0") if isinstance(cell, str) else str(int(cell))


def _split(cell: Any) -> StampCell | None:
    return split_cell(cell) if isinstance(cell, str) else None
