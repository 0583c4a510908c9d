"""Tables of how models grow with the number of positions, as columns and rows of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qkv.costs.measuring.growth import Exponent, GrowthCurve, GrowthPoint, crossover
from qkv.report.figures import size

SUMMARY = (
    "model",
    "time ∝ N^",
    "theory",
    "memory ∝ N^",
    "theory",
    "path length",
    "sequential operations",
    "decoding state ∝ N^",
    "longest measured",
    "faster than {first} from",
    "why it ended",
)


def summary(curves: Sequence[GrowthCurve]) -> tuple[list[str], list[list[str]]]:
    """Return (columns, rows) of measured and theoretical exponents, with one row per model.

    One column has the length from which on a model is faster than the first model.
    """
    first = curves[0]
    columns = [column.format(first=first.name) for column in SUMMARY]
    return columns, [_row(curve, first) for curve in curves]


def points_table(curve: GrowthCurve) -> tuple[list[str], list[list[str]]]:
    """Return (columns, rows) with one row for every measured length of one model."""
    columns = ["positions", "seconds", "µs per position", "peak memory", "decoding state"]
    return columns, [
        [
            f"{point.length:,}",
            f"{point.seconds:.4g}",
            f"{1e6 * point.seconds / point.length:.3g}",
            size(point.peak_bytes),
            "–" if point.state_bytes is None else size(point.state_bytes),
        ]
        for point in curve.points
    ]


def _row(curve: GrowthCurve, first: GrowthCurve) -> list[str]:
    theory, longest = curve.theory, curve.points[-1].length if curve.points else 0
    path, steps = (_order(theory.path), _order(theory.steps)) if theory else ("?", "?")
    crossed = None if curve is first else crossover(curve, first)
    return [
        curve.name,
        _format_exponent(curve.exponent("seconds")),
        f"{theory.time:g}" if theory else "?",
        _format_exponent(curve.exponent("peak_bytes")),
        f"{theory.memory:g}" if theory else "?",
        path,
        steps,
        _state(curve.points),
        f"{longest:,}",
        "–" if curve is first else f"{crossed:,}" if crossed else "never",
        curve.ended or "the maximum length",
    ]


def _format_exponent(exponent: Exponent | None) -> str:
    return "not fitted" if exponent is None else f"{exponent.value:.2f} ± {exponent.half:.2f}"


def _order(exponent: float | None) -> str:
    return "–" if exponent is None else {0.0: "1", 1.0: "N"}.get(exponent, f"N^{exponent:g}")


def _state(points: Sequence[GrowthPoint]) -> str:
    """Return the growth exponent of the state's bytes between the last two lengths as text."""
    sizes = [point.state_bytes for point in points[-2:]]
    if len(sizes) < 2 or None in sizes:
        return "–"
    before, last = sizes
    return "0" if before == last else f"{math.log2((last or 1) / (before or 1)):.2g}"
