"""HTML for notebooks: complete, escaped, without script or request, and its style stays inside."""

from __future__ import annotations

import base64
import re

from tests.report.checks import HOSTILE, read_html, read_svg

from qkv.report.charts.chart import LineChart
from qkv.report.charts.frame import asset
from qkv.report.charts.series import Line
from qkv.report.fragment import CLASS, Fragment, evaluation_fragment, run_fragment, tables_fragment
from qkv.report.training import TrainingRun

METRICS = [
    {"step": 1, "time": 1.0, "loss": 3.0},
    {"step": 2, "time": 2.0, "loss": 1.5, "val_loss": 2.25, "val_accuracy": 51.0},
]
SPLITS = {
    "validation": {"figures": {"accuracy": 61.25, "loss": 0.7}, "notes": ["a note"], "sections": []},
    "test": {"figures": {"accuracy": 58.5}, "notes": [], "sections": []},
}


def example(text: str) -> TrainingRun:
    evaluation = {"step": 2, "splits": {text: {"figures": {text: 1.0}, "notes": [text], "sections": []}}}
    return TrainingRun(text, text, METRICS, folder=text, evaluation=evaluation)


def test_a_run_shows_its_figures_its_loss_and_its_report() -> None:
    html = run_fragment(
        TrainingRun("runs/a, step 2", "a model", METRICS, folder="runs/a", evaluation={"step": 2, "splits": SPLITS})
    )
    words = read_html(html).text
    for expected in ("runs/a, step 2", "a model", "2.250", "evaluation at step 2", "accuracy", "61.25", "58.50"):
        assert expected in words, expected
    assert "Full report: runs/a/report.html" in words
    (image,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    read_svg(base64.b64decode(image).decode())


def test_a_run_without_metrics_has_no_chart() -> None:
    html = run_fragment(TrainingRun("a"))
    assert "<img" not in html
    assert "report.html" not in html


def test_an_evaluation_shows_all_metrics_and_its_notes() -> None:
    words = read_html(evaluation_fragment("Evaluation", SPLITS)).text
    for expected in ("Evaluation", "Accuracy, test", "58.50", "validation 61.25", "loss", "0.7000", "a note"):
        assert expected in words, expected


def fragments(text: str) -> list[str]:
    """All kinds of fragments, with ``text`` in every place that takes one."""
    page = Fragment(text)
    page.header(text, text)
    page.picture(LineChart(text, [Line(text, [1, 2], [1.0, 2.0])]), 100)
    evaluation = evaluation_fragment(text, {text: {"figures": {text: 1.0}, "notes": [text], "sections": []}})
    return [run_fragment(example(text)), evaluation, tables_fragment(text, [([text, text], [[text, 1]])]), page.html()]


def test_values_are_escaped() -> None:
    for hostile, plain in zip(fragments(HOSTILE), fragments("plain"), strict=True):
        read, expected = read_html(hostile), read_html(plain)
        assert [name for name, _ in read.elements] == [name for name, _ in expected.elements]
        assert [set(attributes) for _, attributes in read.elements] == [set(a) for _, a in expected.elements]
        assert not read.scripts
        assert "</script><script>alert(1)</script> ]]>" in read.text


def test_nothing_is_loaded_and_no_style_leaves_the_fragment() -> None:
    html = run_fragment(example("a"))
    assert html.startswith(f'<div class="{CLASS}">')
    assert not re.search(r"https?://|@import|url\(", html)
    rules = re.findall(r"([^{}]+)\{", asset("fragment.css"))
    assert rules
    assert all(part.strip().startswith(f".{CLASS}") for rule in rules for part in rule.split(","))
    assert "prefers-color-scheme" not in asset("fragment.css")  # the colours are those of the page around it
    assert len(html) < 60_000
