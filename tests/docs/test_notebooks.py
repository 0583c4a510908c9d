"""Notebooks run from the first cell to the last, and are committed without outputs."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from making.notebooks import Output, cells, page, run
from tests.docs.blocks import ROOT
from tests.docs.test_blocks import reader

pytestmark = pytest.mark.slow

__all__ = ["reader"]

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("reader")
def test_a_notebook_runs(path: Path) -> None:
    """Training is cut to two steps; a failed assertion or any error in a cell fails the test."""
    outputs = [output for _, output in run(path) if output is not None]
    assert sum(bool(output.text) for output in outputs) > 2
    assert any(hasattr(output.value, "_repr_svg_") for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path: Path) -> None:
    book = json.loads(path.read_text("utf-8"))
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    assert path.with_suffix(".md").is_file()
    for cell in cells(path):
        assert not cell.code or ast.parse(cell.source).body


def test_a_page_shows_code_printed_text_values_and_charts(tmp_path: Path) -> None:
    sources = [
        ("markdown", "# Title"),
        ("code", "x = 2\nprint(x + 1)"),
        ("code", "from qkv.report.charts.bars import BarChart\nBarChart('Bars', [('a', x)])"),
        ("code", "x * 3"),
    ]
    book = {"cells": [{"cell_type": kind, "source": [text]} for kind, text in sources]}
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps(book))
    shown = page(path, tmp_path)
    assert [output for _, output in run(path)][1] == Output("3\n", None)
    assert "```text\n3\n```" in shown
    assert "```text\n6\n```" in shown
    assert "![Bars](/_build/pictures/small-2.svg)" in shown
    assert (tmp_path / "small-2.svg").read_text().startswith("<svg")


def test_an_error_in_a_cell_is_not_swallowed(tmp_path: Path) -> None:
    path = tmp_path / "wrong.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["print(1)\n", "1 / 0"]}]}))
    with pytest.raises(ZeroDivisionError):
        page(path, tmp_path)
