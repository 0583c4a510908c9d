"""View of neurons: where feed-forward neurons and memory slots fire most, in a text or in held-out rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.lens.inspection.packing import ArrayBlock
from qkv.lens.inspection.reading import name_inputs, read_input
from qkv.lens.inspection.sides import side_of
from qkv.lens.inspection.subject import Subject
from qkv.lens.record import record
from qkv.lens.views.neurons import Neurons, neurons
from qkv.runs.run import task_of
from qkv.runs.storage.folder import SPEC
from qkv.system.errors import UserError
from qkv.tasks.dataset import VALIDATION

MOST = 16_384
"""Maximum number of positions that are read."""
_WINDOW, _ROWS = 128, 8
_PLACES = 5
"""Number of places of each neuron."""
_SHOWN = 24
"""Number of neurons of a branch that are shown for the input, and for all rows."""
_AROUND = 36
"""Number of characters before and after a token that are shown."""


def firing(subject: Subject, block: ArrayBlock) -> Mapping[str, Any]:
    """Neurons of each position-wise branch that fire most at the explained position and over all rows, with the tokens
    there in context.
    """
    model = subject.run.model
    if model.encoder is not None:
        raise UserError("neurons are shown for models of one stack; this one has an encoder")
    rows = list(_read(subject))
    tables = neurons(model, rows, _PLACES)
    here = record(model, subject.read.signal, *(f"{each.path}.{each.point}" for each in tables)).records
    now = {(location.path, location.call): value for location, value in here.items()}
    contexts = _Contexts(subject, rows)
    return {
        "over": "the text" if subject.text is not None else "held-out rows of the run",
        "read": contexts.positions,
        "position": subject.position,
        "branches": [
            _branch(each, _here(subject, now[f"{each.path}.{each.point}", each.call]), contexts) for each in tables
        ],
    }


def _here(subject: Subject, values: Tensor) -> Tensor:
    """Return the values of the neurons (F) at the explained position."""
    return values[subject.read.row].flatten(1)[min(subject.position, values.shape[1] - 1)].cpu()


def _branch(each: Neurons, here: Tensor, contexts: _Contexts) -> dict[str, Any]:
    count = min(_SHOWN, len(here))
    often = each.values.nan_to_num(-torch.inf).cpu().min(-1).values  # the lowest of the highest values
    chosen = dict.fromkeys([*here.topk(count).indices.tolist(), *often.topk(count).indices.tolist()])
    return {
        "path": each.path,
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
                    {"value": value, **contexts.around(row, position)}
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


class _Contexts:
    """Labels of the positions of rows, which are made when a place in the row is shown."""

    def __init__(self, subject: Subject, batches: Sequence[Signal]):
        self._subject, self._labels = subject, dict[int, tuple[str, ...]]()
        self._rows = [(batch, row) for batch in batches for row in range(batch.num_rows)]
        self.positions = sum(_positions(subject, batch) for batch in batches)

    def around(self, row: int, position: int) -> dict[str, str]:
        """Return the label of a position, and the text before and after it; the row of what is no text."""
        labels, values = self._of(row), self._rows[row][0].values
        if values.dim() != 2 or values.is_floating_point() or self._subject.run.vocabulary.target.absent:
            return {"before": f"row {row}: ", "token": labels[position], "after": ""}
        before, after = "".join(labels[:position]), "".join(labels[position + 1 :])
        return {"before": before[-_AROUND:], "token": labels[position], "after": after[:_AROUND]}

    def _of(self, row: int) -> tuple[str, ...]:
        if row not in self._labels:
            run, (batch, place) = self._subject.run, self._rows[row]
            self._labels[row] = side_of(run.model, batch, run.vocabulary.target, row=place).labels
        return self._labels[row]


def _positions(subject: Subject, batch: Signal) -> int:
    frontend = subject.run.model.frontend
    lengths = frontend.lengths(batch)
    return frontend.count(batch) * batch.num_rows if lengths is None else int(lengths.sum())


def _read(subject: Subject) -> Iterator[Signal]:
    """Yield batches of rows until ``MOST`` positions are read."""
    total = 0
    for batch in _held_out(subject) if subject.text is None else _of_text(subject, subject.text):
        yield batch.to(subject.run.model.device)
        total += _positions(subject, batch)
        if total >= MOST:
            return


def _held_out(subject: Subject) -> Iterator[Signal]:
    run = subject.run
    task = task_of(run)
    if not (run.folder / SPEC).exists():
        raise UserError("the model has no data of its own here; give a text that fires its neurons: --over FILE")
    for batch in task.open(run.recipe, run.vocabulary).rows(VALIDATION):
        yield batch.input


def _of_text(subject: Subject, text: str) -> Iterator[Signal]:
    """Yield windows of the text for a decoder of text, and else its lines as inputs."""
    run = subject.run
    names = name_inputs(run)
    if len(names) != 1 or not run.vocabulary.has_text:
        raise UserError("the model reads no single text; leave the text out, and its held-out rows are read")
    if run.model.spec.decodes and run.model.spec.head.predicts_tokens:
        ids = run.tokenizer.encode(text)[:MOST]
        size = min(_WINDOW, run.recipe.model.context_length)
        windows = iter([ids[first : first + size] for first in range(0, len(ids), size)])
        while part := list(islice(windows, _ROWS)):
            yield Signal.of_rows(part, run.model.device)
        return
    for line in text.splitlines():
        if line.strip():
            yield read_input(run, {names[0]: line.strip()}).signal
