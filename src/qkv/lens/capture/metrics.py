"""Metrics of patching: numbers of a run of the model, one for each pair of inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.layers.signal import Signal
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.system.errors import UserError
from qkv.tasks.task import Scale, Task, Totals

Metric = Callable[[Transformer, Any], Tensor]
"""Function (model, inputs) -> one number for each row of the inputs, (B). It runs the model once on the inputs."""


def outputs_of(model: Transformer, inputs: Signal | Tensor | Batch) -> Tensor:
    """Return the outputs of the head; the source of a batch, if there is one, is encoded first."""
    if not isinstance(inputs, Batch):
        return model(inputs)[0]
    memory = None if inputs.source is None else model.encode(inputs.source)
    return model(inputs.input, memory=memory)[0]


def logit_difference(answers: Tensor | Sequence[Sequence[int]]) -> Metric:
    """Return the metric logit(right) - logit(wrong) at the last position of each row (Wang et al. 2023).

    ``answers`` (B, 2): ids of the right and the wrong answer of each row; labels, for a model that classifies.
    """
    ids = torch.as_tensor(answers)
    if ids.dim() != 2 or ids.shape[1] != 2:
        raise UserError(f"answers have the shape {list(ids.shape)}; give the ids of a right and a wrong one for a row")

    def metric(model: Transformer, inputs: Signal | Tensor | Batch) -> Tensor:
        logits = at_least_single(outputs_of(model, inputs))
        if len(logits) != len(ids):
            raise UserError(f"answers are given for {len(ids)} rows, and the inputs have {len(logits)}")
        if logits.dim() == 3:
            signal = Signal.of(inputs.input if isinstance(inputs, Batch) else inputs)
            ends = torch.full((len(ids),), logits.shape[1]) if signal.lengths is None else signal.lengths
            logits = logits[torch.arange(len(ids)), ends.to(logits.device) - 1]
        right, wrong = logits.gather(1, ids.to(logits.device)).unbind(1)
        return right - wrong

    return metric


def task_metric(task: Task, name: str = "loss", scale: Scale | None = None) -> Metric:
    """Return the metric ``name`` of a task, such as "accuracy", as the metric of one batch: one number, (1).

    ``scale``: averages of the split that some metrics are relative to, ``dataset.scale(split)``.
    Raises ``UserError`` in a call for a metric that the task does not have.
    """

    def metric(model: Transformer, batch: Batch) -> Tensor:
        totals = Totals()
        totals.add(task.observe(model, batch.to(model.device)))
        figures = task.figures(totals, scale or Scale(1.0, 1.0))
        if name not in figures:
            raise UserError(f"the task {task.spec.kind!r} has the metrics {', '.join(figures)}; {name!r} is none")
        return torch.tensor([figures[name]], dtype=torch.double)

    return metric
