"""Page of a program that a Transformer carries out: instructions, memory over time, and what attention reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from qkv.report.charts.heatmap import HeatMap
from qkv.report.figures import counted
from qkv.report.page import Page, Tone


@dataclass(frozen=True)
class SubleqPage:
    """Values of the page.

    sizes: sentences on the machine.   memory: numbers in the cells ``cells`` (names) by step.   readings: lines
    (head, cell, weight, blurred bits, word) of each of the first steps.
    """

    title: str
    source: str
    results: str
    verdict: str
    correct: bool
    sizes: Sequence[str]
    columns: Sequence[str]
    table: Sequence[Sequence[object]]
    cells: Sequence[str]
    memory: Sequence[Sequence[float]]
    readings: Sequence[Sequence[Sequence[object]]] = field(default=())

    def html(self) -> str:
        """Return the HTML source of the page."""
        page, tone = Page(self.title), "good" if self.correct else "danger"
        status: tuple[str, Tone] = ("equal" if self.correct else "differs", tone)
        page.header(self.results, *status)
        page.note(self.verdict, tone)
        page.cards([("instructions", f"{len(self.table):,}", "one forward pass each")])
        with page.section("Machine"):
            page.prose("\n\n".join(self.sizes))
        with page.section("Memory over time"):
            page.prose("A row is a cell that the program uses, a column the row of tokens after so many instructions.")
            page.chart(HeatMap("number in each cell", self.memory, rows=self.cells, x_label="step", width=960))
        with page.section("Inside the first steps"):
            page.prose(
                "The counter's position reads with five heads. A softmax gives the addressed cell less than 1, so bits "
                "are blurred; two layers of ReLU make them 0 and 1 again."
            )
            for number, lines in enumerate(self.readings, 1):
                with page.details(f"step {number}", open_=number == 1):
                    page.table(["head", "cell", "weight", "bits as read, lowest first", "word"], lines)
        with page.section("Instructions"), page.details(counted(len(self.table), "instruction"), open_=True):
            page.table(self.columns, self.table)
        with page.section("Program"):
            page.code(self.source)
        return page.html()
