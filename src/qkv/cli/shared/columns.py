"""Options of the command line that name columns of a table, one for each role that a task or a processor reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from qkv.cli.shared.verbs import column_names
from qkv.spec.processors import Role, processor_roles

_COLUMN = "COLUMN"
_OF_TASKS = {
    "text": (_COLUMN, "Input text column; default: guessed."),
    "pair": (_COLUMN, "Column of a second text, for text pairs."),
    "cells": ("COLUMNS", "Columns of numbers and categories beside the other inputs."),
    "label": (_COLUMN, "Column of classes; of prefer: whether an answer is good."),
    "labels": (_COLUMN, "Column of labels."),
    "value": (_COLUMN, "Number column."),
    "time": (_COLUMN, "Column of time stamps."),
    "series": (_COLUMN, "Column of series; for forecasts: of their names."),
    "known": ("COLUMNS", "Columns known in advance, such as holidays."),
    "summary": (_COLUMN, "Summary column."),
    "caption": (_COLUMN, "Column of captions."),
    "source": ("FILE|COLUMN", "Source text file; with --data, a column."),
    "target": ("FILE|COLUMN", "Translation of --source, line by line."),
    "transcript": (_COLUMN, "Column of the texts of sounds."),
    "speaker": (_COLUMN, "Column of speakers, whose error rates are told apart."),
    "words": (_COLUMN, "Column of words."),
    "tags": (_COLUMN, "Column of tags, one per word."),
    "question": (_COLUMN, "Question column."),
    "context": (_COLUMN, "Column of the text that a question or prompt refers to."),
    "answers": (_COLUMN, "Column of answers."),
    "messages": (_COLUMN, "Column of conversations, lists of messages."),
    "prompt": (_COLUMN, "Column of prompts."),
    "completion": (_COLUMN, "Column of the answers to prompts."),
    "chosen": (_COLUMN, "Column of preferred answers."),
    "rejected": (_COLUMN, "Column of answers that are not preferred."),
    "system": (_COLUMN, "Column of system messages."),
    "tools": (_COLUMN, "Column of tools, lists of JSON schemas."),
    "voice": (_COLUMN, "Column of the names of speakers."),
    "history": (_COLUMN, "Column of earlier turns, pairs of a question and an answer."),
}
"""Option for each column that a task reads -> (placeholder, help text)."""


def column_options() -> dict[str, Any]:
    """Return the annotation of each option that names a column for ``qkv train``, by name."""
    plain = {name: (_COLUMN, f"Column of {role.values or name}.") for name, role in processor_roles().items()}
    return {name: _option(*{**plain, **_OF_TASKS}[name]) for name in column_names()}


def input_options() -> dict[str, Any]:
    """Return the annotation of the option of each input that a processor reads, for ``qkv predict``, by name."""
    return {
        name: _option("VALUE|COLUMN", f"Input of {role.values or name}; with --data, their column.")
        for name, role in processor_roles().items()
    }


def role_options(roles: Iterable[Role]) -> dict[str, Any]:
    """Return the annotation of the option that names the column of each of the ``roles``, by name."""
    return {
        role.name: _option(*_OF_TASKS.get(role.name, (_COLUMN, f"Column of {role.values or role.name}.")))
        for role in roles
    }


def _option(metavar: str, text: str) -> Any:
    return Annotated[str | None, typer.Option(metavar=metavar, help=text)]
