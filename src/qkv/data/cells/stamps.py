"""Time stamps of series: the form of a column, decided by all of its cells; reading, and writing of further ones."""

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
"""Seconds since 1970 and fractions of them, by name -> per second."""
_RANGE = (1e9, 4.1e9)
"""Seconds since 1970 that numbers are taken for: from 2001 to 2099."""
_YEARS = (-70 * 365.25 * DAY, 131 * 365.25 * DAY)
_EXCEL_RANGE, _EXCEL_EPOCH = (14_000, 73_051), 25_569
_SAMPLE = 200


class StampForm(NamedTuple):
    """Spelling of the time stamps of a column.

    ``name``: pattern of dates, "number", "unix" and its fractions (seconds since 1970), or "excel" (days since 1900).
    ``style``: how a date is written in this form, None for ISO 8601. ``zone``: of the last row, as written there, ""
    without one; ``offset``: seconds that its time is ahead of the values. ``whole``: the cells are whole numbers, not
    texts.
    """

    name: str
    style: Style | None = None
    zone: str = ""
    offset: float = 0.0
    whole: bool = False

    @property
    def dates(self) -> bool:
        """True if the values are seconds since 1970, of the local time or of UTC."""
        return self.name != NUMBER

    def text(self, stamp: float, days: bool = False, zone: str | None = None, offset: float | None = None) -> Any:
        """Time stamp in the form of the column: a text, or a number. ``days``: no date has a time of the day.

        ``zone``, ``offset``: those of another series.
        """
        if self.name in (NUMBER, EXCEL, *_UNIX):
            return _as_number(stamp, self.name)
        zone, offset = self.zone if zone is None else zone, self.offset if offset is None else offset
        local = EPOCH + timedelta(seconds=stamp + offset_at(zone, stamp, offset) if offset else stamp)
        if self.style is not None:
            found = f"{self.style.write(local)}{zone}"
            return int(found) if self.whole else found
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
    """Time stamps as numbers: as given, or seconds since 1970 if ``form.dates``; NaN if they cannot be read.

    With zones whose offset changes, the values are of UTC, unless all have the same local time of the day.
    ``offsets``: seconds that local time is ahead of the values, of each cell; ``zones``: as written; None without any.
    ``other``: name of another form that all cells have too, "" without one.
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
        """Share of cells that can be read."""
        return float(np.isfinite(self.values).mean()) if len(self.values) else 0.0

    def note(self, cells: Sequence[Any], option: str) -> str:
        """Sentence on a form that is not ISO 8601. ``option``: by which another can be given, "" for none."""
        name, first = self.form.name, int(np.isfinite(self.values).argmax())
        clear = not (self.other or name.startswith(EXCHANGED) or _number(cells[first]) == _number(cells[first]))
        if name == NUMBER or clear:
            return ""
        moment = EPOCH + timedelta(seconds=float(self.values[first]))
        form = in_words(name) if "%" in name else "days since 1900" if name == EXCEL else "time since 1970"
        found = f"time stamps are read as {form}, such as {cells[first]} as {moment.isoformat(sep=' ')}"
        found = found.removesuffix(" 00:00:00")
        way = f" ({option}={self.other})" if option else ""
        return found + (f"; {in_words(self.other)} is possible too{way}" if self.other else "")


class _Reading(NamedTuple):
    name: str
    values: np.ndarray
    missing: int = 0


def read_stamps(cells: Sequence[Any], preferred: str | None = None, utc: bool = False) -> Stamps:
    """Read the cells of a column as numbers or dates, in the form that reads most cells.

    Of several such forms, as with day and month exchanged, ``preferred`` is used, else the one with the fewest steps
    missing between the first and the last cell, else the first of ``PATTERNS``. ``utc``: if some cells have a zone, the
    others are of UTC, and not unreadable.
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
    """Stamps of numbers: these themselves, dates in digits, or time since 1970 or 1900."""
    whole = np.isfinite(numbers) & (numbers == np.floor(np.nan_to_num(numbers)))
    texts = [_digits(cell) if whole[i] or isinstance(cell, str) else None for i, cell in enumerate(cells)]
    found = [each for each in _readings(texts, preferred) if _in_years(each.values)]
    others = [each for each in _scaled(numbers) if _in_years(each.values)]
    found = [each for each in (*found, *others) if np.isnan(each.values).sum() <= np.isnan(numbers).sum()]
    plain = _Reading(NUMBER, numbers)
    if preferred == NUMBER or not found:
        return Stamps(numbers, StampForm(NUMBER))
    strong = [each for each in found if each.name not in (*WEAK, EXCEL)]
    weak = [each for each in found if each.name in (*WEAK, EXCEL)]
    chosen, other = _choose([*strong, plain, *weak], preferred)
    if chosen.name == NUMBER:
        return Stamps(numbers, StampForm(NUMBER))
    stamps = _with_zones(chosen, [StampCell(text or "") for text in texts], other)
    whole = not any(isinstance(cell, str) for cell in cells)
    return stamps._replace(form=stamps.form._replace(whole=whole))


def _in_years(values: np.ndarray) -> bool:
    """True if all dates are from 1900 to 2100, as those in digits have to be."""
    known = values[np.isfinite(values)]
    return bool(len(known)) and bool((known >= _YEARS[0]).all() and (known <= _YEARS[1]).all())


def _scaled(numbers: np.ndarray) -> Iterator[_Reading]:
    known = numbers[np.isfinite(numbers)]
    for name, scale in _UNIX.items():
        if (known >= _RANGE[0] * scale).all() and (known <= _RANGE[1] * scale).all():
            yield _Reading(name, numbers / scale)
    if (known >= _EXCEL_RANGE[0]).all() and (known <= _EXCEL_RANGE[1]).all():
        yield _Reading(EXCEL, (numbers - _EXCEL_EPOCH) * DAY)


def _readings(texts: Sequence[str | None], preferred: str | None) -> list[_Reading]:
    """Readings of dates that read most of the texts, in the order of ``PATTERNS``, each with other values."""
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
    """(reading, name of another one that is possible too, "" without one)."""
    several = list[_Reading]()
    for each in readings:
        if not any(np.array_equal(each.values, other.values, equal_nan=True) for other in several):
            several.append(each)
    if len(several) == 1:
        return several[0], ""
    scored = [each._replace(missing=_missing(each)) for each in several]
    best = min(scored, key=lambda each: (each.name != preferred, each.missing))
    others = [each for each in scored if each is not best and "%" in each.name and each.name not in WEAK]
    return best, min(others, key=lambda each: each.missing).name if others else ""


def _missing(reading: _Reading) -> int:
    known = np.unique(reading.values[np.isfinite(reading.values)])
    return unevenness(known, reading.name != NUMBER) if len(known) > 1 else 0


def _with_zones(reading: _Reading, cells: Sequence[StampCell], other: str, utc: bool = False) -> Stamps:
    """Stamps of a reading of local times, with their zones.

    Of cells with and without a zone, the fewer are unreadable.
    """
    values, zones = reading.values, tuple(cell.zone for cell in cells)
    zoned = np.array([bool(zone.strip()) for zone in zones])
    if zoned.any():
        offsets = np.array(
            [offset_of(zone, wall) if wall == wall else math.nan for zone, wall in zip(zones, values, strict=True)]
        )
        values = np.where(utc | (zoned == (zoned.mean() >= 0.5)), values, math.nan)
        values = np.where(np.isnan(offsets), math.nan, values)
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        return Stamps(values, StampForm(reading.name), other=other)
    tail = known[np.argsort(values[known], kind="stable")][-_SAMPLE:]
    style = _style(reading.name, [cells[i] for i in tail], values[tail])
    last = zones[tail[-1]]
    if not zoned.any():
        return Stamps(values, StampForm(reading.name, style), other=other)
    alike = len(np.unique(values[known] % DAY)) == 1 or len(np.unique(offsets[known])) == 1
    if alike:
        return Stamps(values, StampForm(reading.name, style, last), zones, np.zeros(len(values)), other)
    form = StampForm(reading.name, style, last, float(offsets[tail[-1]]))
    return Stamps(values - offsets, form, zones, offsets, other)


def _style(name: str, cells: Sequence[StampCell], values: np.ndarray) -> Style | None:
    """Style of a pattern; None for one whose order of day and month is easily mistaken, so that ISO 8601 is written."""
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
