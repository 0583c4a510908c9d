"""Command ``qkv predict``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from qkv.cli.shared.columns import input_options
from qkv.cli.shared.inputs import lines_of_input, text_of_file
from qkv.cli.shared.runs import Copy, ModelFolder, load_run, output_file, page_file, run_or_published
from qkv.cli.shared.why_words import tell_why
from qkv.system.errors import UserError, nearest

if TYPE_CHECKING:
    from qkv.runs.inference.partial_answers import PartialAnswers
    from qkv.runs.run import Run

EXAMPLES = """\
qkv predict runs/reviews "I would go there again"
qkv predict runs/reviews --data new.csv --out answered.csv
qkv predict runs/reviews "I would go there again" --why --report why.html
qkv predict runs/qa "Who wrote it?" --context @page.txt
qkv predict bart-large-mnli/ "They won the cup" --label sport --label politics
qkv predict nllb/ "Das ist gut" --from deu --to eng
qkv predict t5-small/ --set source=@page.txt --task summarization
cat lines.txt | qkv predict runs/multi30k -
"""
_AT_ONCE = 256
_SHOWN = 60
"""Maximum number of characters of an input shown in a table."""
_OPTIONS = 10
"""Maximum number of class probabilities shown for one input."""
_ENDINGS = ("csv", "tsv", "jsonl")

Answer = dict[str, Any]

_Inputs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[INPUT]...", help="Texts; '-' reads one per line from standard input."),
]
_Context = Annotated[
    str | None, typer.Option(metavar="TEXT|@FILE", help="Text that contains the answer to a question.")
]
_Part = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=TEXT|@FILE", help="Value of another input field.")
]
_Data = Annotated[
    str | None, typer.Option(metavar="FILE", help="Predict for every row of a table (CSV, TSV, JSONL, …).")
]
_Column = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=COLUMN", help="--data: column of an input field; default: as in training."),
]
_Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="--data: output file (.csv, .tsv, .jsonl); default: standard output."),
]


class _UseOptions(NamedTuple):
    """Options of zero-shot classification, of text to text and of named entities."""

    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label", metavar="LABEL", help="Choose among these labels by entailment (zero-shot); repeatable."
        ),
    ] = None
    hypothesis: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help='--label: sentence that the text may entail, with {} for the label; default: "This example is {}."',
        ),
    ] = None
    multi_label: Annotated[bool, typer.Option("--multi-label", help="--label: score each label independently.")] = False
    source_language: Annotated[
        str | None, typer.Option("--from", metavar="CODE", help="Language of the text, for a translator of many.")
    ] = None
    target_language: Annotated[
        str | None, typer.Option("--to", metavar="CODE", help="Language of the translation, such as de.")
    ] = None
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME",
            help="Settings and prefix for a task in the model's config.json, such as summarization of T5.",
        ),
    ] = None
    group: Annotated[
        str | None,
        typer.Option(metavar="simple|first|average|max", help="Group the tokens of named entities, with their scores."),
    ] = None
    no_answer: Annotated[
        bool, typer.Option("--no-answer", help="--context: the text may hold no answer (a model of SQuAD 2).")
    ] = False


class _WhyOptions(NamedTuple):
    """Options of explanations."""

    why: Annotated[
        bool, typer.Option("--why", help="Also print how the answer changes when each word is left out.")
    ] = False
    report: Annotated[Path | None, typer.Option(metavar="FILE.html", help="--why: also write the words as a page.")] = (
        None
    )


more_options = input_options
"""Options beside the parameters of the command: one for each input that a registered processor reads."""


def predict_command(
    run: ModelFolder,
    inputs: _Inputs = None,
    context: _Context = None,
    part: _Part = None,
    data: _Data = None,
    column: _Column = None,
    out: _Out = None,
    *,
    uses: _UseOptions,
    explanation: _WhyOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line with all details.")] = False,
    copy: Copy = False,
    **columns: str | None,
) -> None:
    """Predict with a trained model: a label, tags, an answer, a translation, a summary or a number, depending on its
    task.
    """
    named = {name: value for name, value in columns.items() if value is not None}
    _check(inputs, data, out, column, context, part or (list(named) if data is None else None))
    _check_why(explanation, data)
    use = _use(uses, explanation.why)
    folder = run_or_published(run)
    parts = {name: _value(value) for name, value in named_values("--set", part)} | named
    if context is not None:
        parts["context"] = _value(context)
    texts = _texts(inputs or [])
    loaded = load_run(folder, copy)
    if data is not None:
        chosen = dict(named_values("--column", column)) | named
        _answer_table(loaded, data, chosen, use, out, "jsonl" if as_json else "csv")
        return
    rows = _rows(loaded, texts, parts)
    if explanation.why:
        tell_why(loaded, rows, as_json, explanation.report)
        return
    from qkv.api.functions import predict

    groups = _answers(rows, lambda some: predict(loaded, *some, **use))
    _tell(rows, [answer for some in groups for answer in some], as_json)


def _tell(rows: Sequence[dict[str, Any]], answers: Sequence[Answer], as_json: bool) -> None:
    """Print the answers to ``rows``, as JSON lines or as text, and their notes on standard error."""
    _tell_notes(answers)
    if not as_json:
        _print(rows, answers)
        return
    for row, answer in zip(rows, answers, strict=True):
        typer.echo(json.dumps({**row, **answer}, ensure_ascii=False))


def _use(options: _UseOptions, why: bool) -> dict[str, Any]:
    """Return the arguments of ``use_of`` for the options that are given.

    Raises ``UserError`` for options that need --label, and if --why is combined with any of them.
    """
    named = {"labels" if name == "label" else name: value for name, value in options._asdict().items() if value}
    if "labels" not in named and named.keys() & {"multi_label", "hypothesis"}:
        raise UserError(f"--{'multi-label' if options.multi_label else 'hypothesis'} needs --label")
    if named and why:
        name = next(iter(named))
        option = {"source_language": "from", "target_language": "to", "labels": "label"}.get(
            name, name.replace("_", "-")
        )
        raise UserError(f"--why explains only the task that the model was trained on; leave --{option} out")
    return named


def _check_why(options: _WhyOptions, data: str | None) -> None:
    """Raise ``UserError`` for --why on a table, and for a page without --why."""
    why, report = options
    if why and data is not None:
        raise UserError("--why is for single inputs, and --data gives a table; leave one of them out")
    if report is not None and not why:
        raise UserError("--report needs --why")
    if report is not None:
        page_file("--report", report)


def _check(
    inputs: list[str] | None,
    data: str | None,
    out: Path | None,
    column: list[str] | None,
    context: str | None,
    part: list[str] | None,
) -> None:
    """Raise ``UserError`` for options that cannot be combined."""
    if data is not None and (inputs or context is not None or part):
        raise UserError("--data predicts for the rows of a file; give no other input")
    if data is None and not inputs and not part:
        raise UserError("no input; give a text, '-' for lines on standard input, or --data FILE")
    if data is None and (out or column):
        raise UserError(f"--{'out' if out else 'column'} needs --data")
    if out and out.suffix.removeprefix(".") not in _ENDINGS:
        raise UserError(f"--out: {str(out)!r} should end in .csv, .tsv or .jsonl")
    if out:
        output_file("--out", out, data)


def named_values(option: str, texts: list[str] | None) -> Iterator[tuple[str, str]]:
    """Parse the values NAME=VALUE of a repeatable option, and yield pairs (name, value)."""
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UserError(f"{option}: {text!r} given, but it should be a name, '=' and a value")
        yield name.strip(), value


def _value(text: str) -> str:
    """Return the value of a text option: the text itself, or for "@FILE" the contents of the file."""
    if not text.startswith("@"):
        return text
    return text_of_file(Path(text[1:]).expanduser())


def _texts(inputs: Sequence[str]) -> list[str]:
    """Return the texts given as arguments, or the lines of standard input if the only argument is "-"."""
    if list(inputs) == ["-"]:
        inputs = lines_of_input()
        if not inputs:
            raise UserError("standard input has no line of text")
    if not all(text.strip() for text in inputs):
        raise UserError("the input is empty")
    return list(inputs)


def _rows(run: Run, texts: list[str], parts: dict[str, str]) -> list[dict[str, Any]]:
    """Build the input fields of each prediction, one mapping per text; ``parts``: fields common to all texts."""
    from qkv.runs.inference.predict import predict, rows_for
    from qkv.runs.run import task_of

    task = task_of(run)
    asks = task.asks
    if not asks:
        predict(run, [])  # raises that there is nothing to predict
    for name in parts:
        fields = (*asks, *task.may_ask)
        if name not in fields:
            raise UserError(
                f"the task {run.recipe.task.kind!r} has the input fields {', '.join(fields)}, not {name!r}; "
                f"{nearest(name, fields)}"
            )
        if not parts[name].strip():
            raise UserError(f"the {name} is empty")
    return rows_for(run, [{asks[0]: text, **parts} for text in texts] or [parts])


def _answers(
    rows: Sequence[dict[str, Any]], predict: Callable[[Sequence[dict[str, Any]]], list[Answer]], done: int = 0
) -> Iterator[list[Answer]]:
    """Predict for all rows after the first ``done``, in order, and yield the answers in groups; show the progress on
    standard error.
    """
    from qkv.report.progress import Progress

    if len(rows) - done <= _AT_ONCE:
        yield predict(rows[done:]) if done < len(rows) else []
        return
    with Progress("predict", len(rows), "rows", done) as progress:
        for begin in range(done, len(rows), _AT_ONCE):
            some = rows[begin : begin + _AT_ONCE]
            yield predict(some)
            progress.advance(len(some))


def _tell_notes(answers: Sequence[Answer]) -> None:
    """Print the first three notes, such as on truncated inputs, and the number of the others, to standard error."""
    notes = [(i, answer["note"]) for i, answer in enumerate(answers, 1) if answer.get("note")]
    for i, note in notes[:3]:
        typer.echo(f"note: {note}" if len(answers) == 1 else f"note on input {i}: {note}", err=True)
    if len(notes) > 3:
        typer.echo(f"note: {len(notes) - 3:,} more inputs have such notes", err=True)


def _print(rows: Sequence[dict[str, Any]], answers: Sequence[Answer]) -> None:
    """Print plain answers as lines, answers with metrics as a table."""
    from qkv.report.table import print_table

    figures = list(
        dict.fromkeys(name for answer in answers for name, value in answer.items() if _is_figure(name, value))
    )
    if not figures:
        for answer in answers:
            typer.echo(answer["answer"])
        return
    chances: dict[str, float] = answers[0].get("probabilities") or {} if len(answers) == 1 else {}
    if chances:
        best = sorted(chances.items(), key=lambda item: -item[1])
        print_table("", ["answer", "probability"], best[:_OPTIONS])
        return
    table = [
        [_shortened(next(iter(row.values()))), a["answer"], *(a.get(name) for name in figures)]
        for row, a in zip(rows, answers, strict=True)
    ]
    print_table("", [next(iter(rows[0])), "answer", *figures], table)


def _is_figure(name: str, value: Any) -> bool:
    return name != "answer" and isinstance(value, (int, float)) and not isinstance(value, bool)


def _shortened(value: Any) -> str:
    words = cast("list[str]", value) if isinstance(value, list) else str(value).split()
    text = " ".join(words)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _answer_table(
    run: Run, source: str, columns: Mapping[str, str], use: Mapping[str, Any], out: Path | None, form: str
) -> None:
    from qkv.runs.inference.inputs import read_inputs
    from qkv.runs.inference.predict import predict_table
    from qkv.runs.run import task_of
    from qkv.runs.storage.files import clear_errors
    from qkv.system.files import write_file

    ending, partial = out.suffix.removeprefix(".") if out else form, None
    if task_of(run).predicts_tables:
        rows, places, notes = predict_table(run, source, columns)
        answers = [{name: value for name, value in row.items() if name not in places} for row in rows]
        text = _written(places, rows, answers, ending)
    else:
        table = read_inputs(run, source, columns)
        partial = _partial_answers(run, source, {"columns": dict(columns), **use}, out, len(table.rows))
        answers, notes = _resumed_answers(run, table.rows, use, partial), table.notes
        text = _written(table.columns, table.kept, answers, ending)
    for note in notes:
        typer.echo(note, err=True)
    _tell_notes(answers)
    if out is None:
        typer.echo(text, nl=False)
        return
    with clear_errors(str(out)):
        write_file(out, text.encode())
    if partial is not None:
        partial.remove()
    typer.echo(f"{len(answers):,} answers in {out}", err=True)


def _partial_answers(
    run: Run, source: str, settings: Mapping[str, Any], out: Path | None, rows: int
) -> PartialAnswers | None:
    """Return the file of partial answers, with which an interrupted command resumes; None for few rows, without an
    output file, or for a table that is not a file.
    """
    from qkv.runs.inference.partial_answers import PartialAnswers

    if out is None or rows <= _AT_ONCE or not Path(source).is_file():
        return None
    return PartialAnswers(out, run, source, settings)


def _resumed_answers(
    run: Run, rows: Sequence[dict[str, Any]], use: Mapping[str, Any], partial: PartialAnswers | None
) -> list[Answer]:
    """Predict for all rows that have no answer in ``partial``, and store the answers there after each group."""
    from qkv.runs.inference.predict import predict
    from qkv.runs.uses.use import use_of

    answers = list(partial.answers) if partial is not None else []
    if answers:
        source = partial.path if partial else ""
        typer.echo(f"resuming: {len(answers):,} of {len(rows):,} answers are already in {source}", err=True)
    chosen = use_of(**use)
    for some in _answers(rows, lambda some: predict(run, some, chosen), len(answers)):
        if partial is not None and some:
            partial.add(some)
        answers += some
    return answers


def _written(columns: Sequence[str], records: Sequence[Mapping[str, Any]], answers: Sequence[Answer], form: str) -> str:
    """Format rows with their predictions: all details as JSON lines, or answer and scores as CSV/TSV columns."""
    names = dict.fromkeys(name for answer in answers for name in answer)
    as_named = {name: f"predicted_{name}" if name in columns else name for name in names}
    if form == "jsonl":
        rows = [
            {**row, **{as_named[name]: value for name, value in a.items()}}
            for row, a in zip(records, answers, strict=True)
        ]
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    figures = [
        name for name in names if name == "answer" or any(_is_figure(name, answer.get(name)) for answer in answers)
    ]
    file = io.StringIO()
    writer = csv.writer(file, delimiter="\t" if form == "tsv" else ",", lineterminator="\n")
    writer.writerow([*columns, *(as_named[name] for name in figures)])
    for row, answer in zip(records, answers, strict=True):
        writer.writerow([*(_field(row.get(name)) for name in columns), *(_field(answer.get(name)) for name in figures)])
    return file.getvalue()


def _field(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value
