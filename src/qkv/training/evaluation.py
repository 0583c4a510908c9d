"""Evaluation of a model on held-out data: the loss and the task's other observations."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from qkv.data.batch import Batch
from qkv.generation.sample import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.precision import autocast
from qkv.tasks.task import Task, Totals


def measure(
    model: Transformer, task: Task, batches: Iterable[Batch], number_format: str, stop: Callable[[], bool] = lambda: False
) -> Totals | None:
    """Sum the task's observations over ``batches``, without dropout; None if ``stop`` became true."""
    device = model.device
    seen = Totals()
    with evaluating(model), torch.no_grad():
        for batch in batches:
            if stop():
                return None
            with autocast(number_format, device):
                seen.add(task.observe(model, batch.to(device)))
    return seen
