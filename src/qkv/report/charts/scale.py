"""Axis scales: map values to [0, 1] and choose round tick values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from qkv.report.figures import short

LARGEST = 1e100
"""Largest value that is drawn; larger values are treated as infinite. Logarithmic axes draw no value below its inverse.

Spans and ratios of drawn values thus stay finite.
"""

_MANTISSAS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0))


@dataclass(frozen=True)
class AxisScale:
    """Linear or logarithmic axis from ``low`` to ``high``; ``low < high``, both positive if ``log``."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def over(cls, values: Iterable[float], log: bool = False, pad: float = 0.0, zero: bool = False) -> AxisScale:
        """Build an axis over all drawable values, extended by the fraction ``pad`` of its span at both ends.

        ``zero``: include 0.
        """
        drawn = [v for v in values if drawable(v, log)]
        low, high = (min(drawn), max(drawn)) if drawn else (1.0, 10.0) if log else (0.0, 1.0)
        if log:
            low, high = (low / 3, high * 3) if high / low < 1.0001 else (low, high)
            reach = (high / low) ** pad
            return cls(low / reach, high * reach, True)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if high - low <= 1e-9 * max(abs(low), abs(high), 1e-290):
            room = abs(low) / 2 or 0.5
            low, high = low - room, high + room
        room = (high - low) * pad
        return cls(low if zero and low == 0 else low - room, high if zero and high == 0 else high + room)

    def place(self, value: float) -> float:
        """Return the position of ``value`` on the axis: 0 at ``low``, 1 at ``high``."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, count: int = 5) -> list[float]:
        """Choose round values for tick marks within the axis, ascending: about ``count``, at least two."""
        return _log_ticks(self.low, self.high, count) if self.log else _linear_ticks(self.low, self.high, count)


def drawable(value: float | None, log: bool = False) -> bool:
    """Return True if ``value`` can be drawn on a linear or logarithmic axis: finite, not too large, and positive if
    ``log``.
    """
    return value is not None and (1 / LARGEST <= value <= LARGEST if log else abs(value) <= LARGEST)


def _linear_ticks(low: float, high: float, count: int) -> list[float]:
    """Choose the ticks of a linear axis, at least two.

    The ticks are the multiples of the smallest step 1, 2 or 5 · 10^k that gives about ``count`` ticks.
    """
    span = high - low
    power = math.floor(math.log10(span / count))
    ladder = [(mantissa, exponent) for exponent in (power - 1, power, power + 1) for mantissa in (1, 2, 5)]
    fitting = next(
        i for i, (mantissa, exponent) in enumerate(ladder) if span / (mantissa * 10.0**exponent) <= 1.5 * count + 0.7
    )
    candidates = (_multiples(low, high, *step) for step in reversed(ladder[: fitting + 1]))
    return next(ticks for ticks in candidates if len(ticks) >= 2)


def _multiples(low: float, high: float, mantissa: int, exponent: int) -> list[float]:
    """List the multiples of mantissa · 10^exponent in [low, high], each the float nearest to the decimal number."""
    step = mantissa * 10.0**exponent
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{n * mantissa}e{exponent}") for n in range(first, last + 1)]


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for mantissas in _MANTISSAS:
        ticks = [float(f"{m:g}e{e}") for e in range(first, last + 1) for m in mantissas]
        ticks = [t for t in ticks if low <= t <= high]
        if len(ticks) >= max(3, count - 2):
            break
    if len(ticks) < 3:
        return _linear_ticks(low, high, count)
    stride = math.ceil(len(ticks) / (2 * count))
    return ticks[::stride] if stride > 1 else ticks


def labels(ticks: list[float], log: bool = False) -> list[str]:
    """Format the labels of tick marks; on a linear axis, all have the same unit and enough decimals to differ."""
    if log or len(ticks) < 2:
        return [short(t, 6) for t in ticks]
    largest, step = max(abs(t) for t in ticks), min(b - a for a, b in pairwise(ticks))
    unit, suffix = _unit(largest)
    places = max(0, math.ceil(-math.log10(step / unit) - 1e-6))
    return ["0" if t == 0 else f"{t / unit:,.{places}f}{suffix}" for t in ticks]


def _unit(largest: float) -> tuple[float, str]:
    """Choose (unit, suffix) of the tick labels of an axis up to ``largest``.

    From 10,000 on, units are powers of 1000 (k, M, G, T); for very small and very large values, they are powers of ten.
    """
    if 1e-3 <= largest < 1e4:
        return 1.0, ""
    exponent = math.floor(math.log10(largest))
    if 1e4 <= largest < 1e15:
        power = exponent // 3 * 3
        return 10.0**power, {3: "k", 6: "M", 9: "G", 12: "T"}[power]
    return 10.0**exponent, f"e{exponent}"
