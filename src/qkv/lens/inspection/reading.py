"""Encode one input of a run as the signal that its model reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from qkv.data.batching.batch import Batch
from qkv.data.records.values import Unusable
from qkv.generation.text import prompt_ids
from qkv.layers.signal import Signal
from qkv.lens.inspection.sides import Side, side_of
from qkv.runs.inference.predict import predict
from qkv.runs.run import Run, task_of
from qkv.system.errors import UserError
from qkv.tasks.dataset import VALIDATION
from qkv.tasks.example_task import ExampleTask
from qkv.tasks.labels.pooled import PooledTask
from qkv.tasks.text.fill_in import FillInTask, read_gaps


@dataclass(frozen=True)
class ReadInput:
    """One input as the model reads it: ``signal`` for its own stack, ``source`` for its encoder.

    sides: labels of the positions by stack, "model" and "encoder". row: row of the signals. position: position whose
    prediction is explained, for a head with outputs for each.
    """

    signal: Signal
    source: Signal | None
    sides: Mapping[str, Side]
    row: int = 0
    position: int = -1


def name_inputs(run: Run) -> tuple[str, ...]:
    """Return the names of the inputs that ``read_input`` reads."""
    task = task_of(run)
    return task.asks if task.asks and not task.chats else ("text",)


def collect_inputs(run: Run, first: Any, further: Mapping[str, Any], row: int | None) -> dict[str, Any] | int:
    """Return the inputs of the run's task by name, of which ``first`` is the first one, or the number of a row.

    Raises ``UserError`` for inputs and a row, a missing input, or one that the task does not have.
    """
    if row is not None:
        if first is not None or further:
            raise UserError("an input and a row are given; give one of them")
        return row
    task, names = task_of(run), name_inputs(run)
    if not task.asks and not run.vocabulary.has_text:
        raise UserError(
            f"an input of the task {run.recipe.task.kind!r} cannot be given; look at a row of its data instead: row 0"
        )
    inputs = {**({} if first is None else {names[0]: first}), **further}
    wrong = [name for name in inputs if name not in (*names, *task.may_ask)]
    missing = [name for name in names if name not in inputs]
    if wrong or missing:
        what = f"{wrong[0]!r} is no input of it" if wrong else f"{missing[0]!r} is missing"
        raise UserError(f"the model reads {', '.join(names)}, and {what}; or give the row of its data")
    return inputs


def read_input(run: Run, row: Mapping[str, Any], answer: str | None = None) -> ReadInput:
    """Encode ``row``, the inputs of the run's task by name, such as {"text": "…"}.

    answer: text that a model with an encoder writes; by default, what it writes itself. Raises ``UserError``.
    """
    task = task_of(run)
    if task.writes_from_source:
        return _written(run, row, answer)
    if answer is not None:
        raise UserError("an answer is only read by a model that writes a text from a text; leave it out")
    if isinstance(task, PooledTask):
        return _pooled(run, task, row)
    if isinstance(task, FillInTask):
        return _with_gap(run, str(row["text"]))
    if run.vocabulary.has_text and "text" in row:
        return _text(run, str(row["text"]))
    raise UserError(
        f"an input of the task {run.recipe.task.kind!r} cannot be given; look at a row of its data instead: row 0"
    )


def read_row(run: Run, number: int, split: str = VALIDATION) -> ReadInput:
    """Encode row ``number`` of a split of the run's own data, counted from 0, of any task. Raises ``UserError``."""
    dataset = task_of(run).open(run.recipe, run.vocabulary)
    first = 0
    for batch in dataset.rows(split):
        if number < first + batch.input.num_rows:
            return _of_batch(run, batch, "", number - first)
        first += batch.input.num_rows
    raise UserError(f"row {number} given, but the {split} split of the run has {first:,} rows, counted from 0")


def _pooled(run: Run, task: PooledTask, row: Mapping[str, Any]) -> ReadInput:
    """Read a row that has one prediction, as ``PooledTask.scored`` does."""
    reader = task.reader(run.recipe, run.vocabulary)
    try:
        fields, _ = reader.noted(row, task.unknown)
    except Unusable as error:
        raise UserError(str(error)) from None
    return _of_batch(run, task.collator(run.recipe, run.vocabulary)([fields]), reader.picture(row) or "")


def _written(run: Run, row: Mapping[str, Any], answer: str | None) -> ReadInput:
    """Read a source, and the text that the model writes from it as its own input."""
    task = task_of(run)
    assert isinstance(task, ExampleTask)
    text = str(predict(run, [dict(row)])[0]["answer"]) if answer is None else answer
    reader = task.reader(run.recipe, run.vocabulary)
    example = task.encode({**row, "target": text}, run.vocabulary, reader)
    return _of_batch(run, task.collator(run.recipe, run.vocabulary)([example.fields]), "")


def _with_gap(run: Run, text: str) -> ReadInput:
    """Read a text with <mask>, whose first one is the position to explain."""
    tokenizer = run.vocabulary.tokenizer
    mask = tokenizer.special("mask")
    assert mask is not None, "a task with gaps has a mask token"
    gapped = read_gaps(text, tokenizer, [mask])
    read = tokenizer.frame.around(gapped.ids)
    types = run.recipe.model.types_read(read.types)
    signal = Signal(torch.tensor([read.ids]), types=torch.tensor([types]) if types else None).to(run.model.device)
    sides = {"model": side_of(run.model, signal, tokenizer)}
    return ReadInput(signal, None, sides, position=read.begins[0] + gapped.places[0])


def _text(run: Run, text: str) -> ReadInput:
    """Read a text as generation does."""
    signal = Signal.of_rows([prompt_ids(run.tokenizer, text)], run.model.device)
    return ReadInput(signal, None, {"model": side_of(run.model, signal, run.tokenizer)})


def _of_batch(run: Run, batch: Batch, picture: str, row: int = 0) -> ReadInput:
    batch, model = batch.to(run.model.device), run.model
    sides = {"model": side_of(model, batch.input, run.vocabulary.target, picture, row)}
    if batch.source is not None and model.encoder is not None:
        sides["encoder"] = side_of(model.encoder, batch.source, run.vocabulary.tokenizer, row=row)
    return ReadInput(batch.input, batch.source, sides, row)
