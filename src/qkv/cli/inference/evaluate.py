"""Command ``qkv evaluate``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from qkv.api.given import choose_split
from qkv.cli.shared.prompting import PromptOptions
from qkv.cli.shared.runs import Copy, Json, ModelFolder, page_file, run_folder, run_or_published
from qkv.spec.files.overrides import measured
from qkv.spec.files.yaml_io import read_recipe
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.runs.run import Run
    from qkv.tasks.task import Evaluation

EXAMPLES = """\
qkv evaluate runs/my
qkv evaluate runs/my --batches 20
qkv evaluate runs/my --split train --json
qkv evaluate runs/my --split test --report test.html
qkv evaluate runs/translation sample.num_beams=1
qkv evaluate runs/my --data another.txt
qkv evaluate runs/reviews --data more.csv data.columns.text=review
qkv evaluate gpt2 --choices questions.jsonl --template "Q: {question}\\nA: {label}"
"""

_Changes = Annotated[
    list[str] | None, typer.Argument(metavar="[PATH=VALUE...]", help="Overrides of sample.* or of --data columns.")
]
_Data = Annotated[str | None, typer.Option(metavar="FILE", help="Evaluate on this file, read like the run's own data.")]
_Choices = Annotated[
    str | None, typer.Option(metavar="FILE", help="Multiple choice: a table of questions, options and labels.")
]
_Split = Annotated[str | None, typer.Option(metavar="train|validation|test", help="Data split; default: validation.")]
_Batches = Annotated[int | None, typer.Option(metavar="N", help="Evaluate on N evenly spread batches; default: all.")]


def evaluate_command(
    run: ModelFolder,
    changes: _Changes = None,
    data: _Data = None,
    split: _Split = None,
    batches: _Batches = None,
    choices: _Choices = None,
    *,
    prompting: PromptOptions,
    as_json: Json = False,
    report: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Also write an HTML report.")] = None,
    copy: Copy = False,
) -> None:
    """Evaluate a trained model: the loss and the metrics of its task.

    --choices: accuracy of a language model on multiple-choice questions, by the probability of their options.
    """
    if report is not None:
        page_file("--report", report, data, choices, prompting.examples)
    if choices is not None:
        _alone(changes=changes, data=data, split=split, batches=batches)
        result = _by_choice(run_or_published(run), choices, prompting, copy)
    else:
        if prompting.template is not None or prompting.examples is not None:
            raise UserError("--template and --examples apply to --choices only; give a table of questions with it")
        result = _on_data(run_folder(run), changes or (), split, batches, data, copy)
    if report is not None:
        _write(report, str(run), result)
    _tell(run, result, as_json)


class _Evaluated(NamedTuple):
    """Result of an evaluation: the run, the name of the split or file, and the metrics."""

    run: Run
    part: str
    evaluation: Evaluation


def _on_data(
    folder: Path, changes: Sequence[str], split: str | None, batches: int | None, data: str | None, copy: bool
) -> _Evaluated:
    choose_split(split, batches, data, "--")
    measured(read_recipe(folder), changes)  # both checks before torch is imported
    from qkv.api.functions import evaluate, load

    loaded = load(folder, copy=copy)
    result = evaluate(loaded, split, batches, changes, data)
    return _Evaluated(loaded, result.part, result.evaluation)


def _by_choice(folder: Path, choices: str, prompting: PromptOptions, copy: bool) -> _Evaluated:
    from qkv.report.progress import Progress
    from qkv.runs.inference.ask import few_shot, read_rows
    from qkv.runs.inference.choices import evaluate_choices
    from qkv.runs.storage.load import load

    form = prompting.form()
    questions = read_rows(choices, form, "--choices", {}, labelled=True)
    demonstrations = prompting.example_rows({}).rows
    loaded = load(folder, copy=copy)
    prompt = few_shot(loaded, demonstrations, form, prompting.num_examples)
    with Progress("evaluate", len(questions.rows), "questions") as progress:
        return _Evaluated(loaded, choices, evaluate_choices(prompt, questions, progress.advance))


def _tell(run: Path, result: _Evaluated, as_json: bool) -> None:
    """Print the metrics: as one JSON object, or as a table with the notes."""
    from qkv.report.evaluation import words
    from qkv.report.table import print_table

    step, (figures, notes) = result.run.step, (result.evaluation.figures, result.evaluation.notes)
    if as_json:
        typer.echo(json.dumps({"run": str(run), "split": result.part, "step": step, **figures, "notes": notes}))
        return
    rows = [(words(name), value) for name, value in figures.items()]
    print_table(f"{run}, step {step:,}, {result.part}", ["metric", "value"], rows)
    for note in notes:
        typer.echo(note)


def _alone(**options: object) -> None:
    """Raise ``UserError`` for options that do not go with --choices."""
    flags = [name for name, value in options.items() if value]
    if flags:
        named = "changes of the recipe" if flags[0] == "changes" else f"--{flags[0]}"
        raise UserError(f"--choices evaluates on its own table of questions; leave out {named}")


def _write(path: Path, title: str, result: _Evaluated) -> None:
    from qkv.report.evaluation import evaluation_report
    from qkv.runs.storage.files import clear_errors
    from qkv.system.files import write_file

    recipe = result.run.recipe
    splits = {result.part: asdict(result.evaluation)}
    page = evaluation_report(title, recipe.description, splits, result.run.step, recipe.training.validation.best)
    with clear_errors(str(path)):
        write_file(path, page.encode())
