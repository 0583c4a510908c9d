"""Infer the task that fits a table or a folder, and the processor for its values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from qkv.data.cells.numbers import number_form
from qkv.data.processors.processor import recognised
from qkv.data.records.columns.profile import plain
from qkv.data.records.formats import table_of
from qkv.data.records.model import Records, Role
from qkv.data.records.named import TABLES, named_tables
from qkv.data.records.open import open_records
from qkv.data.records.table import Table
from qkv.spec.data import Data
from qkv.spec.tasks import Task
from qkv.system.errors import UserError
from qkv.tasks.registry import build_task

_CLASSES = 20
"""Maximum number of distinct integers that count as class labels; more count as values for regression."""


def guess_task(data: Mapping[str, Any]) -> str:
    """Infer the kind of task from a table's format, column names and values.

    The first kind that fits is taken: questions with answers, words with tags, translations or summaries (by column
    name), sounds with texts, numbers, labels. Raises ``UserError`` if none fits.
    """
    data_spec = Data.parse(dict(data))
    for kind in ("question_answering", "token_classification"):
        if _opened(data_spec, kind) is not None:
            return kind
    for kind in ("translation", "summarization"):
        if _named(data_spec, _roles(kind)):
            return kind
    data_spec = with_processor(data_spec, Task.kinds()["classification"]())
    if data_spec.processor is not None and data_spec.processor.of_sounds and _has_transcripts(data_spec):
        return "transcription"
    labels, numbers = _opened(data_spec, "classification"), _opened(data_spec, "regression")
    if numbers is not None and (labels is None or _are_values(labels)):
        return "regression"
    if labels is not None:
        return "classification"
    raise UserError(
        f"the columns of {data_spec.source!r} do not determine the task; name task and columns, as in: "
        f"qkv train classify --data {data_spec.source} --text … --label …"
    )


def _roles(kind: str) -> tuple[Role, ...]:
    return build_task(Task.kinds()[kind]()).roles  # type: ignore[attr-defined]


def _opened(data: Data, kind: str) -> Records | None:
    """Read the data with the columns of this kind of task; None if they do not fit."""
    roles = build_task(Task.kinds()[kind](), data).roles  # type: ignore[attr-defined]
    try:
        return open_records(
            data.changed(
                columns={role: data.columns[role] for role in data.columns if role in {r.name for r in roles}}
            ),
            roles,
        )
    except UserError:
        return None


def _named(data: Data, roles: tuple[Role, ...]) -> bool:
    """Return True if the table has a column named after each role, such as "source" and "target"."""
    table = (
        named_tables(data.source)["train"]
        if data.source in TABLES
        else table_of(data.source, data, roles, "data.source")
    )
    columns = {plain(column) for column in table.columns}
    return all(columns & {plain(name) for name in (role.name, *role.names)} for role in roles)


def _has_transcripts(data: Data) -> bool:
    """Return True if a table of sounds has a column of texts by its name, which is not a name of labels."""
    (role,) = (role for role in _roles("transcription") if role.written)
    labels = {plain(name) for each in _roles("classification") for name in (each.name, *each.names)}
    names = {plain(name) for name in (role.name, *role.names)} - labels
    return bool({plain(column) for column in table_of(data.source, data, (role,), "data.source").columns} & names)


def _are_values(records: Records) -> bool:
    """Return True if the labels are numbers for regression: not all integers, or many distinct values."""
    labels = {row["label"] for row in records.splits["train"]}
    form = number_form(labels)
    values = {form.read(label) for label in labels}
    if not all(map(math.isfinite, values)):
        return False
    return len(values) > _CLASSES or any(value != int(value) for value in values)


def with_processor(data: Data, task: Task) -> Data:
    """Return a copy of ``data`` with a processor that fits the values in its source, such as images, if the task can
    read other values than text; else return ``data``.
    """
    if data.processor is not None or not task.reads_signals or "text" in data.columns:
        return data

    def table() -> Table | None:
        if data.source in TABLES:
            return named_tables(data.source)["train"]
        try:
            return table_of(data.source, data, build_task(task).roles, "data.source")  # type: ignore[attr-defined]
        except UserError:  # raised again when the table is read for the task
            return None

    processor = recognised(data.source, table, data.columns)
    return data if processor is None else data.changed(processor=processor)
