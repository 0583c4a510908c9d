"""``qkv evaluate``."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.runs import Copy, Json, RunFolder, output_file, run_folder
from qkv.spec.errors import UserError, nearest
from qkv.spec.overrides import measured
from qkv.spec.yaml_io import read_recipe

if TYPE_CHECKING:
    from qkv.spec.recipe import Recipe
    from qkv.tasks.task import Evaluation

EXAMPLES = """\
qkv evaluate runs/my
qkv evaluate runs/my --batches 20
qkv evaluate runs/my --split train --json
qkv evaluate runs/my --split test --report test.html
qkv evaluate runs/translation sample.num_beams=1
qkv evaluate runs/my --data another.txt
qkv evaluate runs/reviews --data more.csv data.columns.text=review
"""
_SPLITS = ("train", "validation", "test")

_Changes = Annotated[
    list[str] | None, typer.Argument(metavar="[PATH=VALUE...]", help="Changes of sample.* or --data columns.")
]
_Data = Annotated[str | None, typer.Option(metavar="FILE", help="Evaluate on this file, read like the run's own data.")]
_Split = Annotated[str | None, typer.Option(metavar="train|validation|test", help="Data split; default: validation.")]
_Batches = Annotated[int | None, typer.Option(metavar="N", help="Evaluate on N evenly spread batches; default: all.")]


def evaluate_command(
    run: RunFolder,
    changes: _Changes = None,
    data: _Data = None,
    split: _Split = None,
    batches: _Batches = None,
    as_json: Json = False,
    report: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Also write an HTML report.")] = None,
    copy: Copy = False,
) -> None:
    """Evaluate a trained model: the loss and the metrics of its task."""
    split = _checked(split, data, batches)
    folder = run_folder(run)
    if report is not None:
        output_file("--report", report, data)
    from qkv.report.evaluation import words
    from qkv.report.table import print_table

    recipe = measured(read_recipe(folder), changes or ())  # before torch is imported
    from qkv.runs.evaluation import evaluate
    from qkv.runs.load import load

    loaded = replace(load(folder, copy=copy), recipe=recipe)
    evaluation = evaluate(loaded, split, batches, data)
    part = split if data is None else data
    if report is not None:
        _write(report, str(run), loaded.recipe, part, evaluation, loaded.step)
    if as_json:
        typer.echo(
            json.dumps(
                {"run": str(run), "split": part, "step": loaded.step, **evaluation.figures, "notes": evaluation.notes}
            )
        )
        return
    rows = [(words(name), value) for name, value in evaluation.figures.items()]
    print_table(f"{run}, step {loaded.step:,}, {part}", ["figure", "value"], rows)
    for note in evaluation.notes:
        typer.echo(note)


def _checked(split: str | None, data: str | None, batches: int | None) -> str:
    """Name of the split to evaluate on. Raises ``UserError`` for wrong values, and options that exclude each other."""
    if batches is not None and batches < 1:
        raise UserError(f"--batches: {batches} given, but it should be at least 1; leave it out for the whole split")
    if data is not None and split is not None:
        raise UserError(
            "--split selects part of the run's own data, and --data evaluates on another file; use only one of them"
        )
    split = split or "validation"
    if split not in _SPLITS:
        raise UserError(f"--split: there is no split {split!r}; {nearest(split, _SPLITS)}")
    return split


def _write(path: Path, title: str, recipe: Recipe, split: str, evaluation: Evaluation, step: int) -> None:
    from qkv.report.evaluation import evaluation_report
    from qkv.runs.files import clear_errors, write_file

    page = evaluation_report(
        title, recipe.description, {split: asdict(evaluation)}, step, recipe.training.validation.best
    )
    with clear_errors(str(path)):
        write_file(path, page.encode())
