"""HTML reports that show several runs side by side: tables and learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qkv.report.charts.chart import LineChart
from qkv.report.charts.series import Line
from qkv.report.page import Page


class Curve(NamedTuple):
    """Validation losses of one run at several steps, in ``unit``."""

    name: str
    unit: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


class TableOf(NamedTuple):
    """Table with its title, for a report page."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def comparison_report(
    runs: Sequence[str],
    tables: Sequence[tuple[str, Sequence[Sequence[Any]]]],
    curves: Sequence[Curve] = (),
    data: dict[str, Any] | None = None,
) -> str:
    """Build a self-contained HTML page on ``runs``: the non-empty ``tables``, and one chart of validation losses for
    each unit.

    ``tables``: (title, rows); a row has a name and one value per run. ``data``: the comparison as plain data, embedded
    in the page.
    """
    page = Page("Comparison of runs")
    page.data["comparison"] = data or {}
    page.header(" · ".join(runs))
    add_tables(page, [TableOf(title, ["", *runs], rows) for title, rows in tables])
    add_curves(page, curves)
    return page.html()


def ranking_report(
    title: str,
    lead: str,
    notes: Sequence[str],
    charts: Sequence[LineChart],
    tables: Sequence[TableOf],
    curves: Sequence[Curve],
    data: dict[str, Any],
) -> str:
    """Build a self-contained HTML page on entries that were compared over seeds.

    In order: conclusions (``notes``), the first table, the charts of the metric against cost, the other tables, and
    learning curves. ``data``: the comparison as plain data, embedded in the page.
    """
    page = Page(title)
    page.data["comparison"] = data
    page.header(lead)
    for note in notes:
        page.note(note)
    add_tables(page, tables[:1])
    with page.section("Quality against cost"):
        page.charts(charts)
    add_tables(page, tables[1:])
    add_curves(page, curves)
    return page.html()


def add_tables(page: Page, tables: Sequence[TableOf]) -> None:
    """Append each table that has rows to the page, in a section with its title."""
    for title, columns, rows in tables:
        if rows:
            with page.section(title.capitalize()):
                page.table(columns, rows)


def add_curves(page: Page, curves: Sequence[Curve]) -> None:
    """Append one chart of validation losses to the page for each unit."""
    charts = [_chart(unit, curves) for unit in dict.fromkeys(curve.unit for curve in curves)]
    if charts:
        with page.section("Learning curves"):
            for chart in charts:
                page.chart(chart)


def _chart(unit: str, curves: Sequence[Curve]) -> LineChart:
    lines = [Line(curve.name, curve.steps, curve.values, points=True) for curve in curves if curve.unit == unit]
    return LineChart("Validation loss", lines, "step", unit)
