"""Pictures of the page on tables: charts of the report of its run, and the words that mattered for one message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import qkv
from making.pictures.sheet import NARROW, WIDE
from qkv.report.charts.bars import BarChart
from qkv.report.charts.chart import LineChart
from qkv.report.sections import reliability_chart
from qkv.report.training import TrainingRun, loss_chart

FOLDER = "runs/messages"
MESSAGE = "The clerk was quite helpful, but the lamp was not solid."
"""Message whose words are left out in turn; the page shows the same one."""
NAMES = ("messages_loss", "messages_reliability", "messages_words")


def charts(run: Any) -> list[LineChart | BarChart]:
    """Learning curves, reliability diagram and words of one message, as in the order of ``NAMES``."""
    measured = TrainingRun(name="", metrics=run.metrics, loss_unit="nats an example")
    sections = run.evaluation["splits"]["validation"]["sections"]
    reliability = next(section for section in sections if section["kind"] == "reliability")
    (answer,) = qkv.explain(run, MESSAGE)
    words = [(word["word"], word["change"]) for word in answer["words"]]
    title = f"“{answer['answer']}”: words that mattered"
    return [
        loss_chart(measured),
        reliability_chart(reliability),
        BarChart(title, words, "change of log-probability without the word", description=f"Message: {MESSAGE}"),
    ]


def pictures(folder: Path) -> Iterator[tuple[str, str]]:
    """(file, content) of the pictures; ``folder``: where the page's commands were executed."""
    for name, chart in zip(NAMES, charts(qkv.load(folder / FOLDER)), strict=True):
        for file, width in ((f"{name}.svg", WIDE), (f"{name}.narrow.svg", NARROW)):
            height = {} if isinstance(chart, BarChart) else {"height": 300}
            yield file, replace(chart, width=width, **height).svg() + "\n"
