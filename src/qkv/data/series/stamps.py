"""Time stamps of series: reading, the step between them, and stamps of future steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np

from qkv.spec.signals.series import Unit

_DATES = ("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%Y.%m.%d", "%d-%m-%Y", "%Y-%m", "%m/%Y", "%b %Y", "%d %b %Y")
_FORMATS = tuple(f"{date}{time}" for date in _DATES for time in ("", " %H:%M", " %H:%M:%S"))
_EPOCH = datetime(1970, 1, 1)
_DAY = 86400.0
_NAMES = ((7 * _DAY, "week"), (_DAY, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


class Stamps(NamedTuple):
    """Time stamps as numbers: as given, or seconds since 1970 if ``dates``; NaN if they cannot be read."""

    values: np.ndarray
    dates: bool


def read_stamps(cells: Sequence[Any]) -> Stamps:
    """Read the cells of a column as numbers, ISO 8601 dates, or dates in one of the usual formats.

    Of several formats that fit all cells (day and month exchanged), the one with the most regular spacing is used.
    """
    numbers = np.array([_number(cell) for cell in cells])
    if np.isfinite(numbers).mean() > 0.5:
        return Stamps(numbers, False)
    iso = np.array([_iso(cell) for cell in cells])
    if np.isfinite(iso).mean() > 0.5:
        return Stamps(iso, True)
    sample = [str(cell) for cell in cells[:100]]
    fitting = [form for form in _FORMATS if np.isfinite([_formatted(cell, form) for cell in sample]).mean() > 0.5]
    found = [np.array([_formatted(str(cell), form) for cell in cells]) for form in fitting]
    found = sorted(found, key=lambda values: (np.isnan(values).sum(), len(np.unique(np.diff(values)))))
    return Stamps(found[0] if found else iso, True)


def _number(cell: Any) -> float:
    if isinstance(cell, bool):
        return math.nan
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


def _iso(cell: Any) -> float:
    try:
        return _seconds(datetime.fromisoformat(cell.strip()))
    except (ValueError, AttributeError):
        return math.nan


def _formatted(cell: str, form: str) -> float:
    try:
        return _seconds(datetime.strptime(cell.strip(), form))
    except ValueError:
        return math.nan


def _seconds(moment: datetime) -> float:
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return (moment - _EPOCH).total_seconds()


class Step(NamedTuple):
    """Time between two steps: ``size`` in its ``unit``; rows have no time stamps."""

    unit: Unit
    size: float

    @property
    def words(self) -> str:
        """Description, such as "1 hour" or "3 months"."""
        if self.unit == "seconds":
            size, name = next(
                ((self.size / each, name) for each, name in _NAMES if self.size % each == 0), (self.size, "second")
            )
        else:
            size, name = self.size, {"months": "month", "rows": "row"}.get(self.unit, "")
        return f"{size:g} {name}{'s' * (size != 1 and bool(name))}".strip()

    def places(self, stamps: np.ndarray) -> np.ndarray:
        """Number of steps (float) from the beginning of time to each stamp."""
        if self.unit != "months":
            return stamps / self.size
        dates = (_EPOCH + timedelta(seconds=float(stamp)) for stamp in stamps)
        return np.array([12 * date.year + date.month - 1 for date in dates]) / self.size

    def following(self, last: float, count: int) -> list[float]:
        """Stamps of the ``count`` steps after the stamp ``last``."""
        if self.unit != "months":
            return [last + self.size * i for i in range(1, count + 1)]
        date = _EPOCH + timedelta(seconds=last)
        return [_seconds(_months_later(date, round(self.size) * i)) for i in range(1, count + 1)]


def _months_later(date: datetime, months: int) -> datetime:
    """Same day some months later, or the last day of that month; the last day of a month stays the last."""
    year, month = divmod(12 * date.year + date.month - 1 + months, 12)
    length = _month_length(year, month + 1)
    day = length if date.day == _month_length(date.year, date.month) else min(date.day, length)
    return date.replace(year=year, month=month + 1, day=day)


def _month_length(year: int, month: int) -> int:
    following = datetime(year + month // 12, month % 12 + 1, 1)
    return (following - datetime(year, month, 1)).days


def guess_step(stamps: Sequence[np.ndarray], dates: bool) -> Step | None:
    """Most frequent distance between neighbouring stamps of sorted series; None if there is none.

    Distances of 28 to 31 days, or multiples that a number of months gives, are months.
    """
    gaps = np.concatenate([np.diff(each) for each in stamps]) if stamps else np.zeros(0)
    gaps = gaps[gaps > 0]
    if not len(gaps):
        return None
    if dates:
        for months in (1, 2, 3, 6, 12):
            low, high = (28, 31) if months == 1 else (30 * months - 2, 31 * months + 1)
            inside = ((gaps >= low * _DAY) & (gaps <= high * _DAY)).mean() > 0.5
            if inside and (months == 12 or len(np.unique(gaps)) > 1):
                return Step("months", months)
    sizes, counts = np.unique(np.round(gaps, 6), return_counts=True)
    return Step("seconds" if dates else "number", float(sizes[counts.argmax()]))


def stamp_text(stamp: float, dates: bool, days: bool) -> str | float | int:
    """Time stamp for people: an ISO date, without the time of the day if ``days``; or a number."""
    if not dates:
        return int(stamp) if stamp == int(stamp) else stamp
    date = _EPOCH + timedelta(seconds=stamp)
    return date.date().isoformat() if days else date.isoformat(sep=" ")


def calendar(stamps: np.ndarray) -> np.ndarray:
    """Calendar features (T, 8) of dates in seconds: sine and cosine of hour, day of the week, month and year."""
    days = stamps / _DAY
    dates = [_EPOCH + timedelta(seconds=float(stamp)) for stamp in stamps]
    month = np.array([(date.day - 1) / 31 for date in dates])
    year = np.array([(date.timetuple().tm_yday - 1) / 366 for date in dates])
    turns = np.stack((days % 1, (days + 3) % 7 / 7, month, year), -1)
    return np.concatenate((np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)), -1)


def usual_period(step: Step) -> int | None:
    """Steps of the season that a spacing suggests: a day of hours, a week of days, a year of months; or None."""
    if step.unit == "months":
        return round(12 / step.size) if 12 % step.size == 0 and step.size < 12 else None
    if step.unit != "seconds":
        return None
    season = _DAY if step.size < _DAY else 7 * _DAY if step.size < 7 * _DAY else 365.25 * _DAY
    period = round(season / step.size)
    return period if period > 1 else None
