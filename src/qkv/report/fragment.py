"""HTML fragments for notebooks: the cards, tables and charts of a report page without the page around them."""

from __future__ import annotations

import base64
from typing import Any

from qkv.report.charts.frame import asset
from qkv.report.evaluation import Splits, headline, rows
from qkv.report.markup import Markup, tag
from qkv.report.page import Chart, Page, Tone
from qkv.report.training import TrainingRun, cards, loss_chart

CLASS = "qkv-report"
"""CSS class of the enclosing element; the style sheet applies to this element only."""


class Fragment(Page):
    """Fragment of a page that is embedded in another page, such as a notebook, and inherits its text colours.

    Charts are images with their own background: their style sheet does not affect the surrounding page, and they are
    legible on light and dark pages. A fragment has no script.
    """

    def header(self, lead: str = "", status: str = "", tone: Tone = "") -> None:
        pill = tag("span", status, class_="pill") if status else None
        self._add(tag("div", tag("b", self.title), pill, class_="headline"))
        if lead:
            self._add(tag("p", lead))

    def html(self) -> str:
        """Return the HTML source of the fragment."""
        return str(tag("div", tag("style", Markup(asset("fragment.css"))), *self._blocks, class_=CLASS))

    def _figure(self, chart: Chart, width: int | None = None) -> Markup:
        content = base64.b64encode(chart.svg(standalone=True).encode()).decode()
        source = f"data:image/svg+xml;base64,{content}"
        title = getattr(chart, "title", "")
        return tag("img", src=source, alt=title, style=f"max-width:{width}px" if width else None)


def run_fragment(run: TrainingRun) -> str:
    """Build the HTML of a training run for a notebook: key metrics, loss, evaluation, and path of the full report."""
    page = Fragment(run.name)
    page.header(run.description)
    page.cards(cards(run))
    chart = loss_chart(run, width=640, height=240)
    if chart.lines:
        page.picture(chart, 640)
    if run.evaluation:
        splits: Splits = run.evaluation["splits"]
        page.table([f"evaluation at step {run.evaluation['step']:,}", *splits], rows(splits))
    if run.folder:
        page.prose(f"Full report: {run.folder}/report.html")
    return page.html()


def evaluation_fragment(title: str, splits: Splits, notes: bool = True) -> str:
    """Build the HTML of an evaluation for a notebook: main metrics as cards, all metrics as a table, and the notes."""
    page = Fragment(title)
    page.header()
    page.cards(headline(splits))
    page.table(["metric", *splits], rows(splits))
    for note in dict.fromkeys(note for evaluation in splits.values() for note in evaluation["notes"]) if notes else ():
        page.prose(note)
    return page.html()


def tables_fragment(title: str, tables: list[tuple[list[str], list[Any]]]) -> str:
    """Build the HTML of ``tables`` (column titles, rows) for a notebook."""
    page = Fragment(title)
    page.header()
    for columns, lines in tables:
        page.table(columns, lines)
    return page.html()
