"""Sections and page of a run's health, as plain data for ``qkv.report``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from qkv.lens.health.gauge import GRADIENT, RATIO
from qkv.lens.health.probe import DEAD, ENTROPY, LOGIT, SCORE, STREAM
from qkv.lens.health.records import Record, curve, places
from qkv.lens.health.verdict import Verdict, worst
from qkv.report.page import Page, Tone
from qkv.report.sections import add_sections

COLUMNS = ["severity", "check", "verdict", "cure"]
_CURVES = (
    ("Update-to-weight ratio by layer", RATIO, True),
    ("Gradient norm by layer", GRADIENT, True),
    ("Size of the residual stream by layer", STREAM, False),
    ("Entropy of attention by layer, share of equal weights", ENTROPY, False),
    ("Largest attention score by layer", SCORE, False),
    ("Share of dead units by layer", DEAD, False),
    ("Largest logit", LOGIT, False),
)
_TONES: Mapping[str, Tone] = {"good": "good", "note": "good", "warning": "accent", "alarm": "danger"}
_MOST_LINES = 24


def verdict_rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """Return a row of ``COLUMNS`` for each verdict."""
    return [[verdict.severity, verdict.check, verdict.sentence, verdict.cure] for verdict in verdicts]


def verdict_section(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the section with the table of the verdicts."""
    return {"kind": "examples", "title": "Health", "columns": COLUMNS, "rows": verdict_rows(verdicts)}


def curve_sections(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return a section with curves over training for each recorded quantity."""
    sections = []
    for title, quantity, logarithmic in _CURVES:
        lines = _lines(records, quantity)
        if any(len(line["x"]) > 1 for line in lines):
            sections.append({"kind": "curves", "title": title, "x_label": "step", "y_log": logarithmic, "lines": lines})
    return sections


def _lines(records: Sequence[Record], quantity: str) -> list[dict[str, Any]]:
    """Return one line for each layer; heads of a layer are averaged."""
    groups: dict[str, list[str]] = {}
    for place in places(records, quantity):
        groups.setdefault(place.split(" ")[0], []).append(place)
    lines = []
    for layer, members in list(groups.items())[:_MOST_LINES]:
        curves = [curve(records, quantity, place) for place in members]
        means = [statistics.fmean(values) for values in zip(*(values for _, values in curves), strict=False)]
        lines.append({"name": layer, "x": curves[0][0][: len(means)], "y": means})
    return lines


def health_page(name: str, verdicts: Sequence[Verdict], records: Sequence[Record], notes: Sequence[str] = ()) -> str:
    """Build the self-contained HTML page of a run's health: its verdicts, and curves of what was recorded."""
    page, severity = Page(f"Health of {name}"), worst(list(verdicts))
    page.header("", severity, _TONES[severity])
    for note in notes:
        page.note(note)
    add_sections(page, [verdict_section(verdicts), *curve_sections(records)])
    return page.html()
