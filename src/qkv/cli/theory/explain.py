"""Command ``qkv explain``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.shared.runs import Json, ModelFolder, load_run, page_file
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.lens.steps.walk import Walk
    from qkv.runs.run import Run

EXAMPLES = """\
qkv explain runs/my "the cat sat on the"
qkv explain runs/my "the cat sat on the" --position 1 --all
qkv explain ./SmolLM2-135M "Once upon a" --out steps.html
qkv explain runs/mine "a new text"            a classifier: ends with the influence of each word
"""
_SMALL = (32, 2)
"""Width and number of layers up to which every step is printed."""


def explain_command(
    run: ModelFolder,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text that the model reads.")],
    position: Annotated[
        int | None,
        typer.Option(metavar="N", help="Token whose numbers are shown; default: the last, for classifiers the first."),
    ] = None,
    features: Annotated[int, typer.Option(min=1, metavar="N", help="Numbers shown of a longer vector.")] = 4,
    every: Annotated[bool, typer.Option("--all", help="Print every layer and head of a larger model.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page with every step.")] = None,
    as_json: Json = False,
) -> None:
    """Walk through a forward pass: every equation from tokens to the next token, or to the label, with its own numbers.

    For predictions of labels and numbers, the influence of each word on the answer follows, as in qkv.explain and
    'qkv predict --why'.
    """
    page = None if out is None else page_file("--out", out)
    if not text.strip():
        raise UserError("the text is empty; give a text that the model reads")
    loaded = load_run(run, copy=False)
    from qkv.lens.steps.walk import walk_through

    walk = walk_through(loaded, text, position, features)
    if page is not None:
        _write(page, str(run), walk)
    if as_json:
        typer.echo(json.dumps(_plain(walk), ensure_ascii=False))
        return
    _tell(walk, every or _is_small(loaded))
    if not walk.answers or not loaded.model.spec.head.predicts_tokens:
        _tell_words(loaded, text)
    if page is not None:
        typer.echo(f"page: {page}")


def _is_small(run: Run) -> bool:
    width, layers = _SMALL
    return run.model.spec.width <= width and len(run.model.spec.walk) <= layers


def _tell(walk: Walk, every: bool) -> None:
    from qkv.report.table import format_table
    from qkv.report.theory.equations import equation_lines, error_sentence

    for line in equation_lines(walk.steps, every):
        typer.echo(line if isinstance(line, str) else _indented(format_table("", *line)))
    if not every:
        typer.echo("\nother heads, and other layers but for their sums: --all, or --out FILE.html")
    typer.echo(f"\n{error_sentence(walk.error)}")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _tell_words(run: Run, text: str) -> None:
    """Print the influence of each word on the answer, if the text has several."""
    from qkv.cli.shared.why_words import tell_why

    if re.search(r"\S\s*\S", text):
        typer.echo()
        tell_why(run, [{"text": text}], False, None)


def _plain(walk: Walk) -> dict[str, object]:
    steps = [
        {
            "place": step.place,
            "title": step.title,
            "formula": step.formula,
            "lines": [list(line) for line in step.lines],
            "columns": list(step.columns),
            "rows": [list(row) for row in step.rows],
            "note": step.note,
        }
        for step in walk.steps
    ]
    answers = [{"answer": label, "probability": chance} for label, chance in walk.answers]
    return {"tokens": list(walk.tokens), "position": walk.position, "steps": steps, "answers": answers}


def _write(page: Path, title: str, walk: Walk) -> None:
    from qkv.report.theory.equations import equations_page, error_sentence
    from qkv.runs.storage.files import clear_errors
    from qkv.system.files import write_file

    content = equations_page(f"Step by step: {title}", walk.tokens, walk.position, walk.steps, walk.answers)
    content.prose(error_sentence(walk.error))
    with clear_errors(str(page)):
        write_file(page, content.html().encode())
