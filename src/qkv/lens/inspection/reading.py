"""Encode one input of a run as the signal that its model reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from qkv.data.batching.batch import Batch
from qkv.data.processors.processor import build_processor
from qkv.data.records.values import Unusable
from qkv.generation.text import prompt_ids
from qkv.layers.signal import Signal
from qkv.lens.inspection.sides import Side, side_of, side_of_sound
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Stack
from qkv.runs.inference.predict import predict
from qkv.runs.run import Run, task_of
from qkv.runs.storage.published import pieces
from qkv.runs.transcription.speech_tokens import speech_tokens
from qkv.system.errors import UserError
from qkv.tasks.dataset import VALIDATION
from qkv.tasks.example_task import ExampleTask
from qkv.tasks.labels.pooled import PooledTask
from qkv.tasks.sound.transcription import TranscriptionTask
from qkv.tasks.text.fill_in import FillInTask, read_gaps
from qkv.tokenizers.tokenizer import Tokenizer

_NO_ANSWER = "an answer is read only by encoder–decoders that turn a text or a sound into a text; leave it out"


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
    values = {**({} if first is None else {names[0]: first}), **further}
    inputs = {name: value for name, value in values.items() if value is not None}
    wrong = [name for name in inputs if name not in (*names, *task.may_ask)]
    missing = [name for name in names if name not in inputs]
    if wrong or missing:
        what = f"{wrong[0]!r} is no input of it" if wrong else f"{missing[0]!r} is missing"
        raise UserError(f"the model reads {', '.join(names)}, and {what}; or give the row of its data")
    return inputs


def read_input(run: Run, row: Mapping[str, Any], answer: str | None = None) -> ReadInput:
    """Encode ``row``, the inputs of the run's task by name, such as {"text": "…"}.

    answer: text that an encoder–decoder is assumed to write; by default, what it writes itself. Raises ``UserError``.
    """
    task = task_of(run)
    if task.writes_from_source:
        return _written(run, row, answer)
    if task.transcribes:
        return _heard(run, row, answer)
    if answer is not None:
        raise UserError(_NO_ANSWER)
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
    return _of_batch(run, task.collator(run.recipe, run.vocabulary)([fields]), reader.picture(row) or "", row=row)


def _written(run: Run, row: Mapping[str, Any], answer: str | None) -> ReadInput:
    """Read a source, and the text that the decoder writes from it, which is also the input of the decoder."""
    task = task_of(run)
    assert isinstance(task, ExampleTask)
    text = str(predict(run, [dict(row)])[0]["answer"]) if answer is None else answer
    reader = task.reader(run.recipe, run.vocabulary)
    example = task.encode({**row, "target": text}, run.vocabulary, reader)
    return _of_batch(run, task.collator(run.recipe, run.vocabulary)([example.fields]), "", row=row)


def _heard(run: Run, row: Mapping[str, Any], answer: str | None) -> ReadInput:
    """Read a sound, and the text that a decoder writes from it.

    With CTC, the first position with a token is explained.
    """
    if run.model.encoder is not None:
        try:
            return _written(_prompted(run), row, answer)
        except Unusable as error:
            raise UserError(str(error)) from None
    if answer is not None:
        raise UserError(_NO_ANSWER)
    task = task_of(run)
    assert isinstance(task, TranscriptionTask)
    read = task.encoded_row(task.reader(run.recipe, run.vocabulary), row)
    sound = _of_batch(run, task.collator(run.recipe, run.vocabulary)([read]), "", row=row)
    with torch.inference_mode(), evaluating(run.model):
        best = run.model(sound.signal)[0][0].argmax(-1)
    tokens = (best != run.model.spec.head.blank).nonzero()  # type: ignore[attr-defined]
    return replace(sound, position=int(tokens[0]) if len(tokens) else 0)


def _prompted(run: Run) -> Run:
    """Return a run whose task begins texts as transcripts: with the tokens of language, task and no timestamps."""
    tokens = speech_tokens(run)
    language = "en" if "en" in (tokens.languages or {}) else next(iter(tokens.languages or {}), None)
    ids = (tokens.start, *tokens.forced(language, "transcribe", False))
    begin = pieces(run.folder, run.tokenizer, ids)
    return replace(run, recipe=run.recipe.changed(task=run.recipe.task.changed(begin=begin)))


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


def _of_batch(run: Run, batch: Batch, picture: str, number: int = 0, row: Mapping[str, Any] | None = None) -> ReadInput:
    batch, model = batch.to(run.model.device), run.model
    stacks: dict[str, tuple[Stack, Signal, Tokenizer]] = {"model": (model, batch.input, run.vocabulary.target)}
    if batch.source is not None and model.encoder is not None:
        stacks["encoder"] = (model.encoder, batch.source, run.vocabulary.tokenizer)
    sides = {
        name: _sound(run, stack, signal, number, row)
        or side_of(stack, signal, tokenizer, picture if name == "model" else "", number)
        for name, (stack, signal, tokenizer) in stacks.items()
    }
    return ReadInput(batch.input, batch.source, sides, number)


def _sound(run: Run, stack: Stack, signal: Signal, number: int, row: Mapping[str, Any] | None) -> Side | None:
    """Return the positions of a stack that reads sound, with their times; None for other stacks."""
    processor: Any = run.vocabulary.processor
    read = stack.frontend.part.processor
    if processor is None or read is None or not read.of_sounds:
        return None
    reader, name = build_processor(processor), task_of(run).asks[0]
    samples = None if row is None else reader.read(row[name])
    picture = "" if row is None else reader.picture(row[name]) or ""
    return side_of_sound(stack, signal, processor, samples, picture, number)
