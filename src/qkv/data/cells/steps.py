"""Time steps of series, on the calendar or on a clock, and positions of time stamps as numbers of steps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np

from qkv.data.cells.dates import EPOCH
from qkv.spec.signals.series import Unit

DAY = 86400.0
_NAMES = ((7 * DAY, "week"), (DAY, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))
_LAST_DAY = 31
_SHORT_MONTH = 28
_WEEKS = 2
"""Minimum time span in weeks before weekdays that never occur are taken as days off."""
_BETWEEN = 0.02
"""Distance from the nearest step, as a fraction of a step, above which a stamp lies between two steps."""
_KEPT = 0.6
"""Minimum fraction of the weeks in which a weekday must occur to be a working day."""


class Step(NamedTuple):
    """Time step: ``size`` in its ``unit``. The unit "rows" is for tables without time stamps.

    ``day``: day of the month of steps of months, 31 for the last day; a shorter month uses its last day. None: the day
    of the stamp from which steps are counted. ``weekdays``: seven digits from Monday on, 1 for a working day; steps of
    the unit "weekdays" skip the other days.
    """

    unit: Unit
    size: float
    day: int | None = None
    weekdays: str | None = None

    @property
    def words(self) -> str:
        """Description, such as "1 hour" or "3 months"."""
        if self.unit == "weekdays":
            return "1 business day" if self.weekdays == "1111100" else f"1 day of {self._names}"
        if self.unit == "seconds":
            size, name = next(
                ((self.size / each, name) for each, name in _NAMES if self.size % each == 0), (self.size, "second")
            )
        else:
            size, name = self.size, {"months": "month", "rows": "row"}.get(self.unit, "")
        return f"{size:g} {name}{'s' * (size != 1 and bool(name))}".strip()

    @property
    def _names(self) -> str:
        names = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
        return ", ".join(name for name, works in zip(names, self.weekdays or "", strict=False) if works == "1")

    def places(self, stamps: np.ndarray) -> np.ndarray:
        """Return the position of each stamp as a number of steps (float) from a fixed origin."""
        if self.unit == "months":
            return _months(stamps) / self.size
        if self.unit == "weekdays":
            return np.busday_count(np.datetime64(0, "D"), _days(stamps), self.weekdays or "1111100").astype(float)
        return stamps / self.size

    def following(self, last: float, count: int) -> list[float]:
        """Return the stamps of the ``count`` steps after the stamp ``last``."""
        if self.unit == "weekdays":
            clock, mask = last % DAY, self.weekdays or "1111100"
            days = np.busday_offset(_days(np.array([last])), np.arange(1, count + 1), "preceding", mask)
            return (days.astype(np.int64) * DAY + clock).tolist()
        if self.unit != "months":
            return [last + self.size * i for i in range(1, count + 1)]
        date = EPOCH + timedelta(seconds=last)
        return [_seconds(_months_later(date, round(self.size) * i, self.day)) for i in range(1, count + 1)]

    def anchored(self, stamps: np.ndarray) -> Step:
        """Return a step of months with the ``day`` on which these stamps lie; return other steps unchanged."""
        if self.unit != "months" or not len(stamps):
            return self
        return self._replace(day=month_day(stamps))


def _seconds(moment: datetime) -> float:
    return (moment - EPOCH).total_seconds()


def _days(stamps: np.ndarray) -> np.ndarray:
    return np.floor(stamps / DAY).astype(np.int64).astype("datetime64[D]")


def _months(stamps: np.ndarray) -> np.ndarray:
    """Count the months from January of the year 0 to each stamp."""
    return _days(stamps).astype("datetime64[M]").astype(np.int64) + 12.0 * EPOCH.year


def _days_of_months(stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (day of the month of each stamp, length of its month)."""
    days = _days(stamps)
    months = days.astype("datetime64[M]")
    first = months.astype("datetime64[D]")
    following = (months + np.timedelta64(1, "M")).astype("datetime64[D]")
    return (days - first).astype(int) + 1, (following - first).astype(int)


def month_day(stamps: np.ndarray) -> int | None:
    """Return the day of the month on which all stamps lie, 31 for the last day; None if they lie on different days.

    In months that are too short, the last day counts as that day.
    """
    days, lengths = _days_of_months(stamps)
    if (days == lengths).all() and (days.max() > _SHORT_MONTH or len(days) > 1):
        return _LAST_DAY
    return int(days.max()) if (days == np.minimum(days.max(), lengths)).all() else None


def _months_later(date: datetime, months: int, day: int | None) -> datetime:
    """Return the same day some months later, or ``day``; the last day of the month if the month is shorter.

    Without ``day``, the last day of a month stays the last day.
    """
    year, month = divmod(12 * date.year + date.month - 1 + months, 12)
    length = _month_length(year, month + 1)
    if day is None:
        day = _LAST_DAY if date.day == _month_length(date.year, date.month) else date.day
    return date.replace(year=year, month=month + 1, day=min(day, length))


def _month_length(year: int, month: int) -> int:
    following = datetime(year + month // 12, month % 12 + 1, 1)
    return (following - datetime(year, month, 1)).days


def guess_step(stamps: Sequence[np.ndarray], dates: bool) -> Step | None:
    """Return the most frequent distance between neighbouring stamps of sorted series; None if there is none.

    Dates on the same day of each month give steps of months. So do distances of 28 to 31 days, or of the number of days
    in 2, 3, 6 or 12 months. Daily stamps that always lack the same weekdays give steps of the other weekdays.
    """
    gaps = np.concatenate([np.diff(each) for each in stamps]) if stamps else np.zeros(0)
    gaps = gaps[gaps > 0]
    if not len(gaps):
        return None
    if dates:
        step = _months_between(stamps) or _about_months(gaps)
        if step is not None:
            return step
    sizes, counts = np.unique(np.round(gaps, 6), return_counts=True)
    size = float(sizes[counts.argmax()])
    weekdays = working_days(np.concatenate(list(stamps))) if dates and size in (DAY, 2 * DAY, 3 * DAY) else None
    if weekdays is not None:
        return Step("weekdays", 1.0, weekdays=weekdays)
    return Step("seconds" if dates else "number", size)


def _months_between(stamps: Sequence[np.ndarray]) -> Step | None:
    """Return the step in months if all stamps have one day of the month and one time of the day; else None."""
    day = month_day(np.concatenate(list(stamps)))
    if day is None or any(len(np.unique(each % DAY)) > 1 for each in stamps):
        return None
    gaps = np.concatenate([np.diff(np.unique(_months(each))) for each in stamps if len(each)])
    sizes, counts = np.unique(gaps, return_counts=True)
    size = sizes[counts.argmax()]
    if (gaps % size).any():
        size = np.gcd.reduce(gaps.astype(np.int64))
    return Step("months", float(size), day)


def _about_months(gaps: np.ndarray) -> Step | None:
    """Return the step of 1, 2, 3, 6 or 12 months whose length in days fits most ``gaps`` (seconds), or None."""
    for months in (1, 2, 3, 6, 12):
        low, high = (28, 31) if months == 1 else (30 * months - 2, 31 * months + 1)
        inside = ((gaps >= low * DAY) & (gaps <= high * DAY)).mean() > 0.5
        if inside and (months == 12 or len(np.unique(gaps)) > 1):
            return Step("months", months)
    return None


def working_days(stamps: np.ndarray) -> str | None:
    """Return the weekdays that occur in daily stamps: seven digits from Monday on, 1 if the day occurs, else 0.

    The stamps must span two weeks, and each weekday must occur in most of the weeks or never. None if all weekdays
    occur, or if there is no such pattern.
    """
    if len(np.unique(stamps % DAY)) > 1:
        return None
    days = np.unique(_days(stamps).astype(np.int64))
    weeks = (days[-1] - days[0] + 1) / 7
    counts = np.bincount((days + 3) % 7, minlength=7)
    there = counts >= _KEPT * np.floor(weeks)
    if weeks < _WEEKS or there.all() or there.sum() < 4 or counts[~there].any():
        return None
    return "".join("1" if each else "0" for each in there)


def unevenness(stamps: np.ndarray, dates: bool) -> int:
    """Measure how badly distinct stamps in order fit a grid of even steps.

    Returns the sum of three counts: steps without a stamp between the first and the last stamp, stamps that share a
    step with another stamp, and stamps between two steps.
    """
    step = guess_step([stamps], dates)
    if step is None:
        return 0
    exact = step.places(stamps)
    places = np.round(exact - exact[0])
    several = len(np.unique(places))
    between = int((np.abs(exact - exact[0] - places) > _BETWEEN).sum())
    return round(float(places[-1])) + 1 + len(stamps) - 2 * several + between


def calendar(stamps: np.ndarray) -> np.ndarray:
    """Compute calendar features (T, 8) of dates in seconds since 1970.

    They are sine and cosine of the position within the day, the week, the month and the year.
    """
    days = stamps / DAY
    dates = [EPOCH + timedelta(seconds=float(stamp)) for stamp in stamps]
    month = np.array([(date.day - 1) / 31 for date in dates])
    year = np.array([(date.timetuple().tm_yday - 1) / 366 for date in dates])
    turns = np.stack((days % 1, (days + 3) % 7 / 7, month, year), -1)
    return np.concatenate((np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)), -1)


def usual_period(step: Step) -> int | None:
    """Return the number of steps in the season that the step size suggests; None if it suggests none.

    The season of steps below a day is a day, of steps below a week a week, and of longer steps a year.
    """
    if step.unit == "months":
        return round(12 / step.size) if 12 % step.size == 0 and step.size < 12 else None
    if step.unit == "weekdays":
        return (step.weekdays or "11111").count("1")
    if step.unit != "seconds":
        return None
    season = DAY if step.size < DAY else 7 * DAY if step.size < 7 * DAY else 365.25 * DAY
    period = round(season / step.size)
    return period if period > 1 else None
