"""Self-contained HTML page: text, key metrics, charts, tables, code and samples, with the data embedded as JSON."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from qkv.report.charts.frame import asset
from qkv.report.figures import all_numbers, cell
from qkv.report.markup import Markup, script_json, tag

Tone = Literal["", "good", "danger", "accent"]


class Chart(Protocol):
    """Interface of charts on a page: their SVG, their values as plain data, and a variant for narrow screens."""

    def svg(self, standalone: bool = True) -> str: ...

    def data(self) -> dict[str, Any]: ...

    def compact(self) -> Chart | None:
        """Return a variant of the chart for narrow screens; None if not needed."""
        ...


class Page:
    """HTML report page built from top to bottom: each method appends one element, ``html()`` returns the page so far.

    All input is escaped. The page loads nothing and only runs its own script, which the browser verifies by its hash.
    ``refresh``: seconds after which the browser reloads the page. ``data`` and the values of every chart are embedded
    as JSON in ``<script type="application/json" id="data">``.
    """

    def __init__(self, title: str, refresh: int | None = None) -> None:
        self.title = title
        self.refresh = refresh
        self.data: dict[str, Any] = {}
        self._charts: list[dict[str, Any]] = []
        self._blocks: list[Markup] = []

    def header(self, lead: str = "", status: str = "", tone: Tone = "") -> None:
        """Append the page's title with a status badge in the colour ``tone``, and below it the sentence ``lead``."""
        pill = tag("span", status, class_=f"pill {tone}".strip()) if status else None
        headline = tag("div", tag("h1", self.title), pill, class_="headline")
        self._add(tag("header", headline, tag("p", lead) if lead else None))

    @contextmanager
    def section(self, heading: str) -> Iterator[None]:
        """Return a context manager; elements appended inside it are placed in a section under ``heading``."""
        yield from self._inside("section", tag("h2", heading))

    @contextmanager
    def details(self, label: str, preview: str = "", open_: bool = False) -> Iterator[None]:
        """Return a context manager; elements appended inside it are placed in a collapsible block with the title
        ``label``.

        ``preview``: text whose beginning is shown beside the label; ``open_``: expanded at first.
        """
        summary = " ".join(preview[:400].split())[:160]
        beside = tag("span", summary, class_="preview") if summary else None
        yield from self._inside("details", tag("summary", tag("span", label, class_="label"), beside), open=open_)

    def prose(self, text: str) -> None:
        """Append paragraphs of text; empty lines separate them."""
        for paragraph in re.split(r"\n\s*\n", text.strip()):
            self._add(tag("p", paragraph))

    def note(self, text: str, tone: Tone = "") -> None:
        """Append a highlighted sentence in the colour ``tone``."""
        self._add(tag("p", text, class_=f"note {tone}".strip()))

    def progress(self, done: float, total: float, label: str) -> None:
        """Append a progress bar, filled to ``done`` of ``total``, with ``label`` below."""
        bar = tag("progress", value=f"{done:g}", max=f"{total:g}", aria_label=label)
        self._add(tag("div", bar, tag("div", label, class_="beside"), class_="progress"))

    def cards(self, cards: Sequence[tuple[str, str, str]]) -> None:
        """Append a row of cards, boxes with one number each: (title, value, note)."""
        boxes = [
            tag(
                "div",
                tag("dt", name),
                tag("dd", value, class_="value"),
                tag("dd", beside, class_="beside"),
                class_="card",
            )
            for name, value, beside in cards
        ]
        self._add(tag("dl", *boxes, class_="cards"))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Append a table; numeric columns are right-aligned. If ``columns`` is empty, the table has no header."""
        count = max([len(columns), *(len(row) for row in rows)])
        numeric = [all_numbers([row[i] for row in rows if i < len(row)]) for i in range(count)]
        classes = ["number" if n else None for n in numeric]
        head = (
            tag(
                "thead",
                tag("tr", *(tag("th", c, scope="col", class_=k) for c, k in zip(columns, classes, strict=False))),
            )
            if columns
            else None
        )
        body = [tag("tr", *(tag("td", cell(c), class_=k) for c, k in zip(row, classes, strict=False))) for row in rows]
        self._add(tag("div", tag("table", head, tag("tbody", *body)), class_="scroll"))

    def chart(self, chart: Chart) -> None:
        """Append a chart of full width; narrow screens show its compact variant."""
        self._add(self._figure(chart))

    def picture(self, chart: Chart, width: int) -> None:
        """Append a chart of at most ``width`` CSS pixels."""
        self._add(self._figure(chart, width))

    def charts(self, charts: Sequence[Chart]) -> None:
        """Append several charts side by side, as far as the page's width allows."""
        self._add(tag("div", *(self._figure(chart) for chart in charts), class_="charts"))

    def drawing(self, markup: Markup) -> None:
        """Append finished markup, such as an SVG, without escaping it."""
        self._add(markup)

    def code(self, text: str, language: str = "") -> None:
        """Append monospaced text; keys of ``yaml`` and comments of ``yaml`` and ``shell`` are coloured."""
        self._add(tag("pre", tag("code", *_coloured(text, language))))

    def sample(self, text: str) -> None:
        """Append text that the model generated: line breaks kept, control characters made visible."""
        self._add(tag("div", text, class_="sample"))

    def html(self) -> str:
        """Return the HTML source of the whole page so far."""
        script = asset("page.js")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = (
            "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; "
            f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        )
        head = [
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", http_equiv="refresh", content=str(self.refresh)) if self.refresh else None,
            tag("title", self.title),
            tag("style", Markup(asset("theme.css") + asset("page.css"))),
        ]
        data = tag("script", script_json({**self.data, "charts": self._charts}), type="application/json", id="data")
        body = tag("body", tag("main", *self._blocks), "\n", data, "\n", tag("script", Markup(script)))
        return f"<!DOCTYPE html>\n{tag('html', tag('head', *head), body, lang='en')}\n"

    def _add(self, block: Markup) -> None:
        self._blocks.append(Markup(block + "\n"))

    def _inside(self, element: str, first: Markup, **attributes: object) -> Iterator[None]:
        outside, self._blocks = self._blocks, [first]
        try:
            yield
        finally:
            inside, self._blocks = self._blocks, outside
            self._add(tag(element, *inside, **attributes))

    def _figure(self, chart: Chart, width: int | None = None) -> Markup:
        self._charts.append(chart.data())
        number, wide, compact = len(self._charts) - 1, Markup(chart.svg(standalone=False)), chart.compact()
        if compact is None:
            return tag("figure", wide, data_chart=number, style=f"max-width:{width}px" if width else None)
        narrow = Markup(compact.svg(standalone=False))
        return tag("figure", tag("div", wide, class_="wide"), tag("div", narrow, class_="narrow"), data_chart=number)


_YAML = re.compile(r"^(?P<lead>\s*(?:- +)*)(?P<key>[\w.]+:)(?P<rest>.*)$", re.DOTALL)


def _coloured(text: str, language: str) -> Iterator[object]:
    for line in text.splitlines(keepends=True):
        match = _YAML.match(line) if language == "yaml" else None
        if language in ("yaml", "shell") and line.lstrip().startswith("#"):
            yield tag("span", line, class_="comment")
        elif match:
            yield from (match["lead"], tag("span", match["key"], class_="key"), match["rest"])
        else:
            yield line
