"""Command ``qkv ask``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from qkv.cli.inference.predict import named_values
from qkv.cli.shared.prompting import PromptOptions
from qkv.cli.shared.runs import Copy, ModelFolder, run_or_published
from qkv.spec.generation import Measure
from qkv.system.errors import UserError, nearest

if TYPE_CHECKING:
    from qkv.generation.few_shot import Template
    from qkv.runs.inference.ask import FewShotRows

EXAMPLES = """\
qkv ask gpt2 "a waste of time" --examples reviews.csv
qkv ask gpt2 --examples reviews.csv --data more.csv --num-examples 16
qkv ask runs/my "The sky is" --template "{text} {label}" --option blue --option green
qkv ask gpt2 --data questions.jsonl --template "Q: {question}\\nA: {label}" --by token
qkv ask llava-1.5-7b-hf --image picture.png "What is it?"
"""

_Inputs = Annotated[list[str] | None, typer.Argument(metavar="[INPUT]...", help="Texts to answer.")]
_Data = Annotated[str | None, typer.Option(metavar="FILE", help="Answer every row of a table; with labels: accuracy.")]
_Option = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Possible answer; repeatable; default: labels of the examples.")
]
_Image = Annotated[list[str] | None, typer.Option(metavar="FILE", help="Picture that the texts ask about; repeatable.")]
_Seed = Annotated[int, typer.Option(metavar="N", help="Random seed for the selection of examples.")]
_By = Annotated[
    str, typer.Option(metavar="sum|token|character", help="Score of an option: log probability, total or mean.")
]
_Calibrate = Annotated[bool, typer.Option("--calibrate", help="Subtract each option's score for the input 'N/A'.")]
_Column = Annotated[
    list[str] | None, typer.Option(metavar="NAME=COLUMN", help="Column of a template field, 'label' or 'options'.")
]


def ask_command(
    run: ModelFolder,
    inputs: _Inputs = None,
    *,
    data: _Data = None,
    prompting: PromptOptions,
    option: _Option = None,
    seed: _Seed = 0,
    by: _By = "sum",
    calibrate: _Calibrate = False,
    column: _Column = None,
    image: _Image = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per answer.")] = False,
    copy: Copy = False,
) -> None:
    """Answer by few-shot prompting: show examples before the input, and choose the most probable option.

    Without options, the answer is generated. Questions about pictures (--image) are asked as in a chat, or answered by
    a run whose inputs are pictures and a text.
    """
    if bool(inputs) == (data is not None):
        raise UserError("give texts to answer, or a table with --data, and not both")
    if by not in get_args(Measure):
        raise UserError(f"--by: {by!r} given; {nearest(by, get_args(Measure))}")
    folder = run_or_published(run)
    if image:
        further = {"--examples": prompting.examples, "--template": prompting.template, "--option": option}
        further |= {"--data": data, "--column": column, "--calibrate": calibrate, "--by": by != "sum", "--seed": seed}
        _check_about_pictures(further)
        _ask_about(folder, inputs or [], image, as_json, copy)
        return
    from qkv.api.functions import ask, load
    from qkv.runs.inference.ask import read_rows

    form, columns = prompting.form(), dict(named_values("--column", column))
    demonstrations = prompting.example_rows(columns)
    questions = _rows_of_texts(inputs or [], form) if data is None else read_rows(data, form, "--data", columns, False)
    loaded = load(folder, copy=copy)
    settings: dict[str, Any] = {"by": by, "calibrate": calibrate, "num_examples": prompting.num_examples, "seed": seed}
    results = ask(loaded, questions.rows, demonstrations.rows, questions.options or option, form.text, **settings)
    for note in (*demonstrations.notes, *questions.notes):
        typer.echo(note, err=True)
    _tell(questions, results, as_json)
    _tell_accuracy(questions, results)


def _check_about_pictures(prompting: Mapping[str, Any]) -> None:
    """Raise ``UserError`` for options of ``prompting`` that are given, which do not apply to questions about pictures,
    before the slow import of torch.
    """
    name = next((name for name, value in prompting.items() if value), None)
    if name is not None:
        raise UserError(f"{name} given beside --image; questions about pictures are texts, asked without prompting")


def _ask_about(folder: Path, questions: Sequence[str], images: Sequence[str], as_json: bool, copy: bool) -> None:
    """Answer questions about pictures; a chat's answer is printed while it is written."""
    from qkv.api.functions import ask, load
    from qkv.cli.inference.chat_output import ChatOutput
    from qkv.runs.chats.pictures import picture_uri
    from qkv.runs.chats.questions import PictureQuestions

    pictures = [picture_uri(each) for each in images]
    run = load(folder, copy=copy)
    model = PictureQuestions(run)
    if model.chats and not as_json:
        for question in questions:
            ChatOutput().write(model.answer(question, pictures))
        return
    for question, answer in zip(questions, ask(run, questions, images=pictures), strict=True):
        typer.echo(json.dumps({"text": question, **answer}, ensure_ascii=False) if as_json else answer["answer"])


def _rows_of_texts(inputs: list[str], form: Template) -> FewShotRows:
    """Convert texts on the command line to rows. Raises ``UserError`` if the template has several fields."""
    from qkv.runs.inference.ask import FewShotRows

    first, *more_fields = form.fields
    if more_fields:
        raise UserError(f"the template has the fields {', '.join(form.fields)}; give a table of them with --data")
    return FewShotRows([{first: text} for text in inputs], None, [])


def _tell(questions: FewShotRows, results: list[dict[str, Any]], as_json: bool) -> None:
    """Print the answers: as JSON lines, or as a table."""
    from qkv.report.table import print_table

    if as_json:
        for row, answer in zip(questions.rows, results, strict=True):
            typer.echo(json.dumps({**row, **answer}, ensure_ascii=False))
        return
    field = next(iter(questions.rows[0]))
    rows = [
        (row[field], answer["answer"], max(answer["probabilities"].values()) if answer["probabilities"] else None)
        for row, answer in zip(questions.rows, results, strict=True)
    ]
    print_table("", [field, "answer", "probability"], rows)


def _tell_accuracy(questions: FewShotRows, results: list[dict[str, Any]]) -> None:
    """Print the accuracy and the baseline if all rows are labelled."""
    if not all("label" in row for row in questions.rows):
        return
    from qkv.runs.inference.ask import accuracy_of, baseline

    right = sum(answer["answer"] == row["label"] for row, answer in zip(questions.rows, results, strict=True))
    measured, without = accuracy_of(right, len(results)), baseline(questions.rows, questions.options)
    typer.echo(f"accuracy {measured} of {len(results):,} rows; {without.name}: {without.value:.1%}", err=True)
    if measured.value <= without.value:
        typer.echo(
            "note: the accuracy is not above the baseline; 'qkv train classify' trains a classifier on labelled rows",
            err=True,
        )
