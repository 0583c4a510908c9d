"""Render the sections of an evaluation: confusion matrices, examples, tagged sentences, alignments, curves, bars."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qkv.report.charts.bars import BarChart
from qkv.report.charts.chart import LineChart
from qkv.report.charts.heatmap import HeatMap, png
from qkv.report.charts.scatter import Group, ScatterPlot
from qkv.report.charts.series import Line
from qkv.report.effects import effects
from qkv.report.markup import Markup, tag
from qkv.report.page import Page
from qkv.report.tagged import kind, legend, sentence

Section = Mapping[str, Any]
_LONGEST = 600
"""Maximum number of characters in a table cell."""
_PAIRS = 12
"""Maximum number of pairs of confused classes in the list."""


def add_sections(page: Page, sections: Sequence[Section]) -> None:
    """Append the detail sections of an evaluation to a page, each under its title.

    The "kind" of a section is a key of ``DRAWN``. Raises ``ValueError`` for an unknown kind.
    """
    for section in sections:
        draw = DRAWN.get(str(section.get("kind")))
        if draw is None:
            raise ValueError(
                f"a section of the kind {section.get('kind')!r} cannot be drawn; kinds: {', '.join(DRAWN)}"
            )
        with page.section(section["title"]):
            if section.get("note"):
                page.prose(section["note"])
            draw(page, section)


def _confusion(page: Page, section: Section) -> None:
    """Append the confusion matrix ``counts[true][predicted]`` of the classes ``labels``, and per-class metrics.

    The colour of a cell shows its fraction of the true class. With ``others``, the last row and column combine all
    classes that have no row of their own, and ``mistakes`` (true, predicted, count) cover all classes.
    """
    labels, counts = [str(label) for label in section["labels"]], section["counts"]
    shares = [[count / (sum(row) or 1) for count in row] for row in counts]
    longest = max((len(label) for label in labels), default=0)
    chart = HeatMap(
        "Confusion matrix, row-normalised",
        shares,
        labels,
        labels,
        x_label="predicted",
        y_label="true",
        low=0.0,
        high=1.0,
        written=[[f"{count:,}" for count in row] for row in counts],
        width=min(960, max(320, 80 + 7 * min(longest, 24) + 48 * len(labels))),
    )
    page.picture(chart, chart.width)
    page.table(
        ["class", "examples", "recall %", "precision %", "F1 %"],
        _by_class(labels, counts)[: len(labels) - bool(section.get("others"))],
    )
    pairs = sorted(
        ((n, i, j) for i, row in enumerate(counts) for j, n in enumerate(row) if i != j and n), reverse=True
    )[:_PAIRS]
    mistakes = section.get("mistakes", [[labels[i], labels[j], n] for n, i, j in pairs])
    if len(labels) > 2 and mistakes:
        with page.details("Most frequent confusions", open_=len(labels) > 12):
            page.table(["true", "predicted", "count"], mistakes)


def _by_class(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> list[list[Any]]:
    """Return a table row for each class: label, examples, recall, precision and F1 in percent; None if undefined."""
    rows: list[list[Any]] = []
    for i, label in enumerate(labels):
        hits, true, predicted = counts[i][i], sum(counts[i]), sum(row[i] for row in counts)
        shares = [
            100 * a / b if b else None for a, b in ((hits, true), (hits, predicted), (2 * hits, true + predicted))
        ]
        rows.append([label, true, *shares])
    return rows


def _examples(page: Page, section: Section) -> None:
    """Append a table with the section's ``columns`` and ``rows``."""
    page.table(section["columns"], [[_cut(value) for value in row] for row in section["rows"]])


def _cut(value: Any) -> Any:
    return f"{value[:_LONGEST]} …" if isinstance(value, str) and len(value) > _LONGEST else value


def _pictures(page: Page, section: Section) -> None:
    """Append ``pictures`` side by side, each with ``source`` (a data URI) and ``caption``.

    Optional ``sound``: data URI of a sound, which gets a player. ``heat``: matrix (rows, columns) of values from 0 to
    1, drawn over the upper left part of the picture. ``covered``: fractions of the picture's height and width that it
    covers.
    """
    figures = []
    for picture in section["pictures"]:
        drawn = tag("img", src=picture["source"], alt=picture["caption"])
        if "heat" in picture:
            drawn = tag("span", drawn, _heat(picture["heat"], picture.get("covered", (1.0, 1.0))), class_="heated")
        player = picture.get("sound") and tag("audio", controls=True, preload="none", src=picture["sound"])
        figures.append(tag("figure", drawn, player, tag("figcaption", picture["caption"])))
    page.drawing(tag("div", *figures, class_="pictures"))


def _retrieval(page: Page, section: Section) -> None:
    """Append ``queries``, each with its best ``candidates`` in order, right ones marked.

    Both have a ``caption`` and, if not None, a ``source`` (data URI of a picture) or a ``sound`` (data URI);
    candidates also have ``score`` and ``right``.
    """
    for query in section["queries"]:
        candidates = [
            _looks(each, f"{each['score']:.2f} {each['caption']}", "right" if each["right"] else None)
            for each in query["candidates"]
        ]
        page.drawing(tag("div", _looks(query, query["caption"], "query"), *candidates, class_="pictures retrieval"))


def _looks(value: Mapping[str, Any], caption: str, class_: str | None) -> Markup:
    """Build the figure of a value: its picture or player, if it has one, and a caption."""
    drawn = value.get("source") and tag("img", src=value["source"], alt=value["caption"])
    player = value.get("sound") and tag("audio", controls=True, preload="none", src=value["sound"])
    return tag("figure", drawn, player, tag("figcaption", caption), class_=class_)


def _sounds(page: Page, section: Section) -> None:
    """Append ``sounds`` with players in rows of ``columns``, each with ``source`` (a data URI) and ``caption``."""
    figures = [
        tag(
            "figure",
            tag("audio", controls=True, preload="none", src=each["source"]),
            tag("figcaption", each["caption"]),
        )
        for each in section["sounds"]
    ]
    page.drawing(tag("div", *figures, class_="sounds", style=f"--columns:{section['columns']}"))


def _heat(shares: Sequence[Sequence[float]], covered: Sequence[float]) -> Markup:
    """Build the image of the matrix ``shares`` that is laid over a picture."""
    source = "data:image/png;base64," + base64.b64encode(png(shares)).decode()
    high, wide = (f"{100 * fraction:.4g}%" for fraction in covered)
    return tag("img", src=source, alt="", class_="heat", style=f"height:{high};width:{wide}")


def _tagged(page: Page, section: Section) -> None:
    """Append tagged sentences: ``sentences``, each with ``words``, predicted ``tags`` and, if available, the true tags
    ``truth``, one per word.
    """
    sentences = section["sentences"]
    kinds = sorted(
        {kind(tag) for entry in sentences for tag in (*entry["tags"], *(entry.get("truth") or ())) if tag != "O"}
    )
    page.drawing(legend(kinds))
    for entry in sentences:
        page.drawing(sentence(entry["words"], entry["tags"], entry.get("truth"), kinds))


def _alignment(page: Page, section: Section) -> None:
    """Append a heat map of the ``weights[target][source]``, by default of cross-attention, with the tokens ``source``
    and ``target`` as its axes; optional ``title``, ``x_label`` and ``y_label``.
    """
    source, target = ([str(token) for token in section[name]] for name in ("source", "target"))
    width = min(960, max(320, 160 + 30 * len(source)))
    labels = section.get("x_label", "source"), section.get("y_label", "output")
    title = section["title"] if "x_label" in section else "Attention"
    page.picture(HeatMap(title, section["weights"], target, source, *labels, low=0.0, width=width), width)


def _curves(page: Page, section: Section) -> None:
    """Append a line chart of ``lines``, each with ``name``, ``y`` and optionally its own ``x`` (default: the ``x`` of
    the section); optional ``x_label`` and ``y_label``.
    """
    lines = [
        Line(line["name"], line.get("x", section.get("x", ())), line["y"], points=True) for line in section["lines"]
    ]
    options = {name: section[name] for name in ("x_label", "y_label", "x_log", "y_log", "y_zero") if name in section}
    page.chart(LineChart(section["title"], lines, **options))


def _bars(page: Page, section: Section) -> None:
    """Append a bar chart of ``bars``, pairs (name, value); optional ``unit`` and ``highlight``."""
    options = {name: section[name] for name in ("unit", "highlight") if name in section}
    chart = BarChart(section["title"], [(str(name), value) for name, value in section["bars"]], **options)
    page.picture(chart, chart.width)


def _points(page: Page, section: Section) -> None:
    """Append a scatter plot of ``groups``, each with ``name`` and ``points`` (x, y)."""
    chart = ScatterPlot(
        section["title"], [Group(str(g["name"]), [(x, y) for x, y in g["points"]]) for g in section["groups"]]
    )
    page.picture(chart, chart.width)


def _effects(page: Page, section: Section) -> None:
    """Append a text whose ``words``, pairs (word, change), are coloured by their effect, and a table of the words.

    ``column``: title of the column of changes.
    """
    page.drawing(effects([(str(word), change) for word, change in section["words"]]))
    with page.details("Table of the words"):
        page.table(["word", section.get("column", "change")], section["words"])


def _reliability(page: Page, section: Section) -> None:
    """Append a reliability diagram and the table of its bins."""
    chart = reliability_chart(section)
    page.picture(chart, chart.width)
    with page.details("Table of the bins"):
        page.table(
            ["probability %", "rows", "mean probability %", "correct %"],
            [[f"{b['low']:.0f}–{b['high']:.0f}", b["rows"], b["confidence"], b["accuracy"]] for b in section["bins"]],
        )


def reliability_chart(section: Section) -> LineChart:
    """Build the reliability diagram from ``bins`` of rows with similar confidence.

    A bin has ``low``, ``high``, ``rows``, and mean ``confidence`` and ``accuracy``, in percent. Optional ``before``:
    bins before calibration, drawn as another line.
    """
    curves = [("calibrated", section["bins"]), ("before calibration", section.get("before", ()))]
    curves = curves if section.get("before") else [("measured", section["bins"])]
    lines = [Line("ideal", (0, 100), (0, 100))]
    for name, bins in curves:
        lines.append(Line(name, [b["confidence"] for b in bins], [b["accuracy"] for b in bins], points=True))
    return LineChart(
        section["title"], lines, "probability of the answer, %", "correct answers, %", y_zero=True, width=640
    )


DRAWN: dict[str, Callable[[Page, Section], None]] = {
    "confusion": _confusion,
    "examples": _examples,
    "pictures": _pictures,
    "retrieval": _retrieval,
    "tagged": _tagged,
    "alignment": _alignment,
    "curves": _curves,
    "bars": _bars,
    "contestants": _examples,
    "heats": _examples,
    "reliability": _reliability,
    "effects": _effects,
    "points": _points,
    "sounds": _sounds,
}
