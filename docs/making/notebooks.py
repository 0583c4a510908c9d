"""Notebooks: run their cells without Jupyter, and show them with their outputs as pages of the documentation.

A page ``NAME.md`` beside ``NAME.ipynb`` is replaced by the notebook, executed when the pages are built.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FRESH = "_build/pictures"


@dataclass(frozen=True)
class Cell:
    """One cell: Markdown or code."""

    code: bool
    source: str


@dataclass(frozen=True)
class Output:
    """Output of a code cell: printed text, and the value of its last expression."""

    text: str
    value: Any


def cells(path: Path) -> list[Cell]:
    """Cells of a notebook file, in order."""
    return [
        Cell(cell["cell_type"] == "code", "".join(cell["source"]))
        for cell in json.loads(path.read_text("utf-8"))["cells"]
    ]


def run(path: Path) -> Iterator[tuple[Cell, Output | None]]:
    """Execute the code cells in one namespace, in the current folder. Errors of a cell propagate."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(path)):
        yield cell, _executed(cell.source, f"{path.name}, cell {number}", names) if cell.code else None


def _executed(source: str, where: str, names: dict[str, Any]) -> Output:
    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, where, "exec"), names)
        value = eval(compile(ast.Expression(last.value), where, "eval"), names) if isinstance(last, ast.Expr) else None
    return Output(printed.getvalue(), value)


def page(path: Path, pictures: Path) -> str:
    """The executed notebook as Markdown; charts are written to ``pictures``."""
    before, blocks = Path.cwd(), []
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stderr(io.StringIO()):
        os.chdir(scratch)
        try:
            for number, (cell, output) in enumerate(run(path)):
                blocks.append(f"```python\n{cell.source}\n```" if cell.code else cell.source)
                if output is not None:
                    blocks += _shown(output, f"{path.stem}-{number}", pictures)
        finally:
            os.chdir(before)
    return "\n\n".join(blocks) + "\n"


def _shown(output: Output, name: str, pictures: Path) -> Iterator[str]:
    if output.text.strip():
        yield f"```text\n{output.text.rstrip()}\n```"
    if hasattr(output.value, "_repr_svg_"):
        narrow = output.value.compact() or output.value
        (pictures / f"{name}.svg").write_text(output.value.svg(), encoding="utf-8")
        (pictures / f"{name}.narrow.svg").write_text(narrow.svg(), encoding="utf-8")
        yield f"![{output.value.title}](/{FRESH}/{name}.svg)"
    elif output.value is not None:
        yield f"```text\n{output.value!r}\n```"


def _replaced(app: Any, name: str, source: list[str]) -> None:
    path = Path(app.srcdir) / f"{name}.ipynb"
    if path.is_file():
        source[0] = page(path, Path(app.srcdir) / FRESH)


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _replaced)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
