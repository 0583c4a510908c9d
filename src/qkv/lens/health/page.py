"""``Health``: the verdicts on a run, with their page and sections for ``qkv.report``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.lens.health.gauge import GRADIENT, RATIO
from qkv.lens.health.probe import DEAD, ENTROPY, LOGIT, SCORE, STREAM
from qkv.lens.health.records import Record, curve, places, read_records
from qkv.lens.health.verdict import Severity, Verdict, worst
from qkv.report.fragment import Fragment
from qkv.report.page import Page, Tone
from qkv.report.sections import add_sections
from qkv.runs.storage.files import clear_errors
from qkv.system.files import write_file

PAGE = "health.html"
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


@dataclass(frozen=True)
class Health:
    """Verdicts on the run in ``folder``, the worst first; notebooks show them with the recorded curves.

    notes: sentences on what could not be checked.
    """

    folder: Path
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()

    @property
    def severity(self) -> Severity:
        """Worst severity of the verdicts."""
        return worst(self.verdicts)

    def plain(self) -> dict[str, Any]:
        """Return the run, the verdicts and the notes as plain data."""
        verdicts = [verdict.plain() for verdict in self.verdicts]
        return {"run": str(self.folder), "verdicts": verdicts, "notes": list(self.notes)}

    def page(self) -> str:
        """Return the self-contained HTML page: the verdicts, and curves of what was recorded."""
        return self._filled(Page(f"Health of {self.folder}"))

    def save(self, path: str | Path | None = None) -> Path:
        """Write the page to a file, by default health.html in the run's folder, and return its path.

        Raises ``UserError`` if it cannot be written.
        """
        path = self.folder / PAGE if path is None else Path(path)
        with clear_errors(str(path)):
            write_file(path, self.page().encode())
        return path

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        return self._filled(Fragment(f"Health of {self.folder}"))

    def _filled(self, page: Page) -> str:
        page.header("", self.severity, _TONES[self.severity])
        for note in self.notes:
            page.note(note)
        add_sections(page, [verdict_section(self.verdicts), *curve_sections(read_records(self.folder))])
        return page.html()
