"""The plain data of an exam's sections, drawn: confusion matrices, examples, tagged sentences, alignments, curves, bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qkv.report.bars import BarChart
from qkv.report.chart import LineChart
from qkv.report.heatmap import HeatMap
from qkv.report.page import Page
from qkv.report.series import Line
from qkv.report.tagged import kind, legend, sentence

Section = Mapping[str, Any]
_LONGEST = 600
"""Characters of a cell of an example."""
_PAIRS = 12
"""Mistakes that are listed by name."""


def add_sections(page: Page, sections: Sequence[Section]) -> None:
    """Every section under its title. Raises ``ValueError`` for one of a kind that cannot be drawn."""
    for section in sections:
        draw = DRAWN.get(str(section.get("kind")))
        if draw is None:
            raise ValueError(f"a section of the kind {section.get('kind')!r} cannot be drawn; kinds: {', '.join(DRAWN)}")
        with page.section(section["title"]):
            if section.get("note"):
                page.prose(section["note"])
            draw(page, section)


def _confusion(page: Page, section: Section) -> None:
    """``labels``, and ``counts[truth][answer]``: coloured by the share of each truth, so that rare classes show.

    With ``others`` the last row and column are many classes together; ``mistakes`` (truth, answer, times) are then those of all classes.
    """
    labels, counts = [str(label) for label in section["labels"]], section["counts"]
    shares = [[count / (sum(row) or 1) for count in row] for row in counts]
    longest = max((len(label) for label in labels), default=0)
    chart = HeatMap(
        "Share of each true class",
        shares,
        labels,
        labels,
        x_label="answer",
        y_label="truth",
        low=0.0,
        high=1.0,
        written=[[f"{count:,}" for count in row] for row in counts],
        width=min(960, max(320, 80 + 7 * min(longest, 24) + 48 * len(labels))),
    )
    page.picture(chart, chart.width)
    page.table(
        ["truth", "examples", "found %", "right when given %", "F1 %"],
        _by_class(labels, counts)[: len(labels) - bool(section.get("others"))],
    )
    pairs = sorted(((n, i, j) for i, row in enumerate(counts) for j, n in enumerate(row) if i != j and n), reverse=True)[:_PAIRS]
    mistakes = section.get("mistakes", [[labels[i], labels[j], n] for n, i, j in pairs])
    if len(labels) > 2 and mistakes:
        with page.details("The most frequent mistakes", open_=len(labels) > 12):
            page.table(["truth", "answer", "times"], mistakes)


def _by_class(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> list[list[Any]]:
    """Of each class its examples, recall, precision and F1 in per cent; None where nothing was there to be divided by."""
    rows: list[list[Any]] = []
    for i, label in enumerate(labels):
        hits, true, given = counts[i][i], sum(counts[i]), sum(row[i] for row in counts)
        shares = [100 * a / b if b else None for a, b in ((hits, true), (hits, given), (2 * hits, true + given))]
        rows.append([label, true, *shares])
    return rows


def _examples(page: Page, section: Section) -> None:
    """``columns`` and ``rows``."""
    page.table(section["columns"], [[_cut(value) for value in row] for row in section["rows"]])


def _cut(value: Any) -> Any:
    return f"{value[:_LONGEST]} …" if isinstance(value, str) and len(value) > _LONGEST else value


def _tagged(page: Page, section: Section) -> None:
    """``sentences``, each with ``words``, ``tags`` and, where it is known, ``truth``: a tag a word."""
    sentences = section["sentences"]
    kinds = sorted({kind(tag) for told in sentences for tag in (*told["tags"], *(told.get("truth") or ())) if tag != "O"})
    page.drawing(legend(kinds))
    for told in sentences:
        page.drawing(sentence(told["words"], told["tags"], told.get("truth"), kinds))


def _alignment(page: Page, section: Section) -> None:
    """``source`` and ``target``, lists of tokens, and ``weights[target][source]``."""
    source, target = ([str(token) for token in section[name]] for name in ("source", "target"))
    width = min(960, max(320, 160 + 30 * len(source)))
    page.picture(HeatMap("Attention", section["weights"], target, source, "source", "written", low=0.0, width=width), width)


def _curves(page: Page, section: Section) -> None:
    """``lines``, each with ``name`` and ``y``, over ``x``, which a line may bring itself; ``x_label`` and ``y_label`` if there are such."""
    lines = [Line(line["name"], line.get("x", section.get("x", ())), line["y"], points=True) for line in section["lines"]]
    options = {name: section[name] for name in ("x_label", "y_label", "x_log", "y_log", "y_zero") if name in section}
    page.chart(LineChart(section["title"], lines, **options))


def _bars(page: Page, section: Section) -> None:
    """``bars``, pairs of a name and a value; ``unit`` and ``highlight`` if there are such."""
    options = {name: section[name] for name in ("unit", "highlight") if name in section}
    chart = BarChart(section["title"], [(str(name), value) for name, value in section["bars"]], **options)
    page.picture(chart, chart.width)


DRAWN: dict[str, Callable[[Page, Section], None]] = {
    "confusion": _confusion,
    "examples": _examples,
    "tagged": _tagged,
    "alignment": _alignment,
    "curves": _curves,
    "bars": _bars,
}
