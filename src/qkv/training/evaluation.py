"""The loss, and what else a task observes, over held-out data."""

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
    """What the task observes in ``batches``, dropout off; None if ``stop`` became true on the way."""
    device = model.device
    seen = Totals()
    with evaluating(model), torch.no_grad():
        for batch in batches:
            if stop():
                return None
            with autocast(number_format, device):
                seen.add(task.observe(model, batch.to(device)))
    return seen
