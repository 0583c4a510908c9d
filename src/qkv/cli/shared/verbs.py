"""``qkv train VERB``: train a task on the user's data, with all other settings chosen automatically."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import typer

from qkv.choosing.verbs import VERBS
from qkv.spec.data import Data
from qkv.spec.models.adapt import Adapt
from qkv.spec.recipes.preference_tasks import PreferenceLoss
from qkv.system.errors import UserError, nearest

FINETUNE = "finetune"
"""Verb that finetunes an existing model and infers the task from the data."""
_PARAMETERS = "|".join(Adapt.kinds())
_ROWS = "|".join(get_args(Data.model_fields["bad_rows"].annotation))


class TableOptions(NamedTuple):
    """Options of ``qkv train`` that apply only after a verb, beside those that name columns."""

    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|FOLDER",
            help="Training data: a CSV, TSV, JSON, JSONL, CoNLL or SQuAD file, or a folder of images.",
        ),
    ] = None
    validation: Annotated[
        str | None, typer.Option(metavar="FILE", help="Validation data; default: a share of --data.")
    ] = None
    test: Annotated[str | None, typer.Option(metavar="FILE", help="Test data for the final evaluation.")] = None
    split_group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Hold out whole groups of rows, by this column.")
    ] = None
    split_time: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Hold out the last rows, by this column of times.")
    ] = None
    bad_rows: Annotated[str | None, typer.Option(metavar=_ROWS, help="Skip or refuse unusable rows.")] = None
    learn: Annotated[
        str | None,
        typer.Option(metavar="answers|last|everything", help="What is learned of a conversation; default: answers."),
    ] = None
    loss: Annotated[
        str | None,
        typer.Option(metavar="|".join(PreferenceLoss.kinds()), help="Loss on preferences; default: sigmoid (DPO)."),
    ] = None
    chat_template: Annotated[
        str | None, typer.Option(metavar="FILE", help="Jinja chat template that replaces the model's own.")
    ] = None
    codec: Annotated[
        str | None, typer.Option(metavar="RUN", help="Neural codec of speak, trained by 'qkv train compress'.")
    ] = None
    horizon: Annotated[int | None, typer.Option(metavar="N", help="Number of future steps; default: a season.")] = None
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN|FOLDER|NAME", help="Run, published checkpoint or GGUF file to finetune."),
    ] = None
    adapt: Annotated[
        str | None,
        typer.Option(
            metavar=_PARAMETERS,
            help="Parameters to train; 'lora(16)' sets the rank. Default: whole; of chat and prefer: lora(16).",
        ),
    ] = None
    task: Annotated[str | None, typer.Option(metavar="VERB", help="Task; default: inferred from the data.")] = None


def column_names() -> list[str]:
    """Return the options of all verbs that name a column."""
    return list(dict.fromkeys(name for verb in VERBS.values() for name in verb.columns))


def table_options() -> list[str]:
    """Return the options of ``qkv train`` that apply only to tables of examples, after a verb."""
    return [*TableOptions._fields, *column_names()]


TEXTS = ("source", "target")
"""Options of ``translate``: two files, or with ``--data`` two columns."""

_OF_DATA = ("data", "validation", "test", "split", "bad_rows")
"""Options for data that do not name columns of the task."""


def table_of(verb: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Convert the options of ``qkv train VERB`` to the source and further arguments of ``qkv.train``, which checks the
    names of columns.

    Raises ``UserError``.
    """
    values = {name: value for name, value in options.items() if value is not None}
    begun = {name: values.pop(name) for name in ("start", "adapt") if name in values}
    if verb == FINETUNE and _trains_on_text(values, begun):
        return values.pop("data"), {**values, **begun}
    if verb == FINETUNE:
        verb = _infer_verb(values, begun)
    elif "task" in values:
        raise UserError(f"--task is an option of 'qkv train finetune'; {verb!r} already names the task")
    values.pop("task", None)
    split = {name.removeprefix("split_"): values.pop(name) for name in list(values) if name.startswith("split_")}
    values.update({"split": split} if split else {})
    data = values.pop("data", None)
    if data is None and verb == "translate" and any(name in values for name in TEXTS):
        data = _two_texts(values)
    if data is None:
        texts = ", or --source a.txt --target b.txt" if verb == "translate" else ""
        raise UserError(f"'qkv train {verb}' needs training data: --data FILE{texts}")
    return data, {"task": verb, **values, **begun}


def _trains_on_text(options: Mapping[str, Any], begun: Mapping[str, Any]) -> bool:
    """Return whether the data of 'finetune' is running text, for language modelling, and not a folder or a table."""
    if "start" not in begun or "task" in options or not Path(options.get("data", "")).expanduser().is_file():
        return False
    from qkv.api.recipes import is_text, table_without_task

    return is_text(options["data"]) and table_without_task(options["data"]) is None


def _infer_verb(values: Mapping[str, Any], begun: Mapping[str, Any]) -> str:
    """Return the verb that 'finetune' stands for: named by --task, or inferred from the options and the data.

    Raises ``UserError``.
    """
    if "start" not in begun:
        raise UserError(
            "'qkv train finetune' needs a model to start from: name a run or a published checkpoint with --from"
        )
    if "task" in values:
        kinds = {**{verb: verb for verb in VERBS}, **{entry.task: verb for verb, entry in VERBS.items()}}
        if values["task"] not in kinds:
            raise UserError(f"--task: {values['task']!r} given; {nearest(str(values['task']), VERBS)}")
        return kinds[values["task"]]
    options = {name for name in values if name not in (*_OF_DATA, "split_group", "split_time")}
    if options:
        fitting = [verb for verb, entry in VERBS.items() if entry.tunes and options <= set(entry.columns)]
        if len(fitting) == 1:
            return fitting[0]
    if "data" not in values:
        raise UserError("'qkv train finetune' needs training data: --data FILE")
    from qkv.choosing.guessed import guess_task

    task = guess_task({"source": values["data"]})
    return next(verb for verb, entry in VERBS.items() if entry.task == task)


def _two_texts(named: dict[str, Any]) -> str:
    for name in TEXTS:
        if name not in named:
            raise UserError(f"--{name} is missing: without --data, --source and --target are two aligned text files")
    files = [named.pop(name) for name in TEXTS]
    for name, file in zip(TEXTS, files, strict=True):
        if not Path(file).expanduser().is_file():
            raise UserError(f"--{name}: there is no file {file!r}")
    return " | ".join(files)


def refuse_without_verb(recipe: str, options: Mapping[str, Any]) -> None:
    """Raise ``UserError`` if a table of examples, or an option of tables, is given without a verb."""
    option = next((name for name, value in options.items() if value is not None), None)
    if option:
        option = "from" if option == "start" else option
        raise UserError(
            f"--{option.replace('_', '-')} needs a verb instead of {recipe!r}: {', '.join(VERBS)}; "
            "example: qkv train classify --data mine.csv"
        )
    from qkv.api.recipes import table_without_task

    table = table_without_task(recipe)
    if table is None:
        return
    command = f"--data {shlex.quote(recipe)}"
    verb = next((verb for verb, entry in VERBS.items() if entry.task == table.task), None)
    if verb is not None:
        raise UserError(f"{recipe!r} is {table.described}; to train on it, name the task: qkv train {verb} {command}")
    raise UserError(
        f"{recipe!r} is {table.described}; to train on it, name the task, one of {', '.join(VERBS)}: "
        f"qkv train VERB {command}"
    )
