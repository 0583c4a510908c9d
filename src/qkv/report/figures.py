"""Format numbers for people: 1.23M, 3 min 12 s, 48.2 MB."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

_UNITS = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")]


def short(value: float, digits: int = 3) -> str:
    """Format a number with ``digits`` significant digits and, from ten thousand, a suffix: 1.23M, 48.2k, 9,876, 0.0123,
    3e-5.
    """
    if not math.isfinite(value):
        return _nonfinite(value)
    rounded = float(f"{value:.{digits}g}")
    unit, suffix = next(((u, s) for u, s in _UNITS if abs(rounded) >= u), (1.0, ""))
    if abs(rounded) < 1e4:
        return f"{value:,.0f}" if abs(rounded) >= 10**digits else plain(rounded, digits)
    return plain(rounded / unit, digits) + suffix


def plain(value: float, digits: int = 3) -> str:
    """Format a number with ``digits`` significant digits, no trailing zeros, and exponents without padding (3e-5)."""
    return re.sub(r"e([+-])0*", lambda m: "e-" if m[1] == "-" else "e", f"{value:.{digits}g}")


def place(value: float) -> str:
    """Format a step number or another axis position; whole numbers are written with all digits."""
    return f"{value:,.0f}" if abs(value) < 1e9 and value == round(value) else short(value, 6)


def counted(count: int, noun: str) -> str:
    """Format a count with its noun, whose plural ends in s: 1 layer, 1,200 layers."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def fixed(value: float, digits: int = 4) -> str:
    """Format a loss or another metric with ``digits`` significant digits, trailing zeros kept: 1.230."""
    if not math.isfinite(value):
        return _nonfinite(value)
    if value == 0 or not 1e-3 <= abs(value) < 1e4:
        return short(value, digits)
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"


def _nonfinite(value: float) -> str:
    return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"


def size(value: float) -> str:
    """Format a number of bytes in powers of 1000: 48.2 MB."""
    for unit, prefix in _UNITS:
        if value >= 0.9995 * unit:
            return f"{value / unit:.3g} {prefix}B"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """Format seconds in their two largest units: 850 ms, 4.2 s, 3 min 12 s, 2 h 05 min, 3 d 4 h."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 1440:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def clock(seconds: float) -> str:
    """Format seconds as [h:]m:ss: 0:41, 12:05, 3:07:22."""
    if not math.isfinite(seconds):
        return "–:––"
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def cell(value: object) -> str:
    """Format a value for a table cell: integers with all digits, floats with four significant digits, booleans as
    yes/no, None as "".
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else fixed(value) if isinstance(value, float) else str(value)


def all_numbers(values: Iterable[object]) -> bool:
    """Return True if a table column holds only numbers and None, and at least one number; such columns are
    right-aligned.
    """
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in present)
