"""View of neurons: where feed-forward neurons and memory slots fire most, in a text or in held-out rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.lens.inspection.packing import ArrayBlock
from qkv.lens.inspection.reading import name_inputs, read_input
from qkv.lens.inspection.sides import side_of
from qkv.lens.inspection.subject import Subject
from qkv.lens.record import record
from qkv.lens.views.neurons import Neurons, Rows, neurons
from qkv.models.transformer import Stack
from qkv.runs.run import task_of
from qkv.runs.storage.folder import SPEC
from qkv.system.errors import UserError
from qkv.tasks.dataset import VALIDATION
from qkv.tokenizers.tokenizer import Tokenizer

MOST = 16_384
"""Maximum number of positions that are read."""
_WINDOW, _ROWS = 128, 8
_WRITTEN = 64
"""Number of lines from which a model with an encoder writes a text."""
_PLACES = 5
"""Number of places of each neuron."""
_SHOWN = 24
"""Number of neurons of a branch that are shown for the input, and for all rows."""
_AROUND = 36
"""Number of characters before and after a token that are shown."""


def firing(subject: Subject, block: ArrayBlock) -> Mapping[str, Any]:
    """Neurons of each position-wise branch that fire most at the explained position, of an encoder's at any position of
    the source, and over all rows, with the tokens there in context.
    """
    model, read = subject.run.model, subject.read
    rows = list(_read(subject))
    tables = neurons(model, [row.batch for row in rows], _PLACES)
    points = (f"{each.path}.{each.point}" for each in tables)
    here = record(model, read.signal, *points, source=read.source).records
    now = {(location.path, location.call): value for location, value in here.items()}
    contexts = _Contexts(subject, rows)
    return {
        "over": "the text" if subject.text is not None else "held-out rows of the run",
        "position": subject.position,
        "branches": [
            _branch(each, _here(subject, each.stack, now[f"{each.path}.{each.point}", each.call]), contexts)
            for each in tables
        ],
    }


def _here(subject: Subject, stack: str, values: Tensor) -> Tensor:
    """Return the values of the neurons (F) at the explained position, of an encoder's the highest of the source."""
    values = values[subject.read.row].flatten(1).cpu()
    if stack == "encoder":
        return values[: len(subject.read.sides["encoder"].labels)].amax(0)
    return values[min(subject.position, len(values) - 1)]


def _branch(each: Neurons, here: Tensor, contexts: _Contexts) -> dict[str, Any]:
    count = min(_SHOWN, len(here))
    often = each.values.nan_to_num(-torch.inf).cpu().min(-1).values  # the lowest of the highest values
    chosen = dict.fromkeys([*here.topk(count).indices.tolist(), *often.topk(count).indices.tolist()])
    return {
        "path": each.path,
        "stack": each.stack,
        "read": contexts.positions[each.stack],
        "layer": each.layer,
        "part": each.part,
        "count": len(here),
        "neurons": [
            {
                "neuron": number,
                "here": float(here[number]),
                "mean": float(each.mean[number]),
                "share": float(each.share[number]),
                "places": [
                    {"value": value, **contexts.around(each.stack, row, position)}
                    for value, row, position in zip(
                        each.values[number].tolist(),
                        each.rows[number].tolist(),
                        each.positions[number].tolist(),
                        strict=True,
                    )
                    if row >= 0
                ],
            }
            for number in chosen
        ],
    }


class _Pair(NamedTuple):
    """Batch of inputs of the model itself, and of its encoder if it has one."""

    inputs: Signal
    source: Signal | None = None

    @property
    def batch(self) -> Rows:
        """Batch as ``neurons`` reads it."""
        return self.inputs if self.source is None else (self.inputs, self.source)


class _Contexts:
    """Labels of the positions of rows by stack, which are made when a place in the row is shown."""

    def __init__(self, subject: Subject, batches: Sequence[_Pair]):
        model, vocabulary = subject.run.model, subject.run.vocabulary
        self._labels = dict[tuple[str, int], tuple[str, ...]]()
        self._stacks: dict[str, tuple[Stack, Tokenizer]] = {"model": (model, vocabulary.target)}
        batched = {"model": [batch.inputs for batch in batches]}
        if model.encoder is not None:
            self._stacks["encoder"] = (model.encoder, vocabulary.tokenizer)
            batched["encoder"] = [batch.source for batch in batches if batch.source is not None]
        self._rows = {
            stack: [(batch, row) for batch in several for row in range(batch.num_rows)]
            for stack, several in batched.items()
        }
        self.positions = {
            stack: sum(_positions(self._stacks[stack][0], batch) for batch in several)
            for stack, several in batched.items()
        }
        """Number of positions that were read, by stack."""

    def around(self, stack: str, row: int, position: int) -> dict[str, str]:
        """Return the label of a position, and the text before and after it; the row of what is no text."""
        labels, values = self._of(stack, row), self._rows[stack][row][0].values
        if values.dim() != 2 or values.is_floating_point() or self._stacks[stack][1].absent:
            return {"before": f"row {row}: ", "token": labels[position], "after": ""}
        before, after = "".join(labels[:position]), "".join(labels[position + 1 :])
        return {"before": before[-_AROUND:], "token": labels[position], "after": after[:_AROUND]}

    def _of(self, stack: str, row: int) -> tuple[str, ...]:
        if (stack, row) not in self._labels:
            (model, tokenizer), (batch, place) = self._stacks[stack], self._rows[stack][row]
            self._labels[stack, row] = side_of(model, batch, tokenizer, row=place).labels
        return self._labels[stack, row]


def _positions(model: Stack, batch: Signal) -> int:
    lengths = model.frontend.lengths(batch)
    return model.frontend.count(batch) * batch.num_rows if lengths is None else int(lengths.sum())


def _read(subject: Subject) -> Iterator[_Pair]:
    """Yield batches of rows until ``MOST`` positions are read."""
    model, total = subject.run.model, 0
    for inputs, source in _held_out(subject) if subject.text is None else _of_text(subject, subject.text):
        read = None if model.encoder is None else source
        yield _Pair(inputs.to(model.device), None if read is None else read.to(model.device))
        total += _positions(model, inputs)
        if total >= MOST:
            return


def _held_out(subject: Subject) -> Iterator[_Pair]:
    run = subject.run
    task = task_of(run)
    if not (run.folder / SPEC).exists():
        raise UserError("the model has no data of its own here; give a text that fires its neurons: --over FILE")
    for batch in task.open(run.recipe, run.vocabulary).rows(VALIDATION):
        yield _Pair(batch.input, batch.source)


def _of_text(subject: Subject, text: str) -> Iterator[_Pair]:
    """Yield windows of the text for a decoder of text, and else its lines as inputs; a model with an encoder reads each
    of the first ``_WRITTEN`` with what it writes from it.
    """
    run = subject.run
    names = name_inputs(run)
    if len(names) != 1 or not run.vocabulary.has_text:
        raise UserError("the model reads no single text; leave the text out, and its held-out rows are read")
    if run.model.spec.decodes and run.model.encoder is None and run.model.spec.head.predicts_tokens:
        ids = run.tokenizer.encode(text)[:MOST]
        size = min(_WINDOW, run.recipe.model.context_length)
        windows = iter([ids[first : first + size] for first in range(0, len(ids), size)])
        while part := list(islice(windows, _ROWS)):
            yield _Pair(Signal.of_rows(part, run.model.device))
        return
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines if run.model.encoder is None else lines[:_WRITTEN]:
        read = read_input(run, {names[0]: line})
        yield _Pair(read.signal, read.source)
