"""``qkv evaluate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.runs import run_folder
from qkv.spec.errors import UserError

EXAMPLES = """\
qkv evaluate runs/my
qkv evaluate runs/my --batches 20
qkv evaluate runs/my --split train --json
"""


def evaluate_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, made by 'qkv train'.")],
    split: Annotated[str, typer.Option(metavar="train|validation|test", help="Which part of the data.")] = "validation",
    batches: Annotated[int | None, typer.Option(metavar="N", help="Measure on so many batches, evenly spread; default: all of it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a trained model: the loss, and the figures of its task."""
    if batches is not None and batches < 1:
        raise UserError(f"--batches: {batches} given, but it should be at least 1; leave it out for the whole split")
    folder = run_folder(run)
    from qkv.report.table import print_table
    from qkv.training.run import evaluate, load

    loaded = load(folder)
    exam = evaluate(loaded, split, batches)
    if as_json:
        typer.echo(json.dumps({"run": str(run), "split": split, "step": loaded.step, **exam.figures}))
        return
    rows = [(name.replace("_", " "), value) for name, value in exam.figures.items()]
    print_table(f"{run}, step {loaded.step:,}, {split}", ["figure", "value"], rows)
    for note in exam.notes:
        typer.echo(note)
