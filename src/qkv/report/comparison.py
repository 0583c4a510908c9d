"""Report of several runs side by side: tables and learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qkv.report.chart import LineChart
from qkv.report.page import Page
from qkv.report.series import Line


class Curve(NamedTuple):
    """Validation losses of one run, in ``unit``, by step."""

    name: str
    unit: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


def comparison_report(
    runs: Sequence[str],
    tables: Sequence[tuple[str, Sequence[Sequence[Any]]]],
    curves: Sequence[Curve] = (),
    data: dict[str, Any] | None = None,
) -> str:
    """Self-contained HTML page of ``runs``: the non-empty ``tables`` (title, rows of a name and one value per run), and
    a chart of validation losses per unit. ``data``: the comparison as plain data, embedded in the page.
    """
    page = Page("Comparison of runs")
    page.data["comparison"] = data or {}
    page.header(" · ".join(runs))
    for title, rows in tables:
        if rows:
            with page.section(title.capitalize()):
                page.table(["", *runs], rows)
    charts = [_chart(unit, curves) for unit in dict.fromkeys(curve.unit for curve in curves)]
    if charts:
        with page.section("Learning curves"):
            for chart in charts:
                page.chart(chart)
    return page.html()


def _chart(unit: str, curves: Sequence[Curve]) -> LineChart:
    lines = [Line(curve.name, curve.steps, curve.values, points=True) for curve in curves if curve.unit == unit]
    return LineChart("Validation loss", lines, "step", unit)
