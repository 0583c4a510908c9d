"""The loss over held-out text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from qkv.data.batch import Batch
from qkv.data.corpus import Counts
from qkv.generation.sample import evaluating
from qkv.models.transformer import Transformer
from qkv.tasks.task import Scale, Task


def precision(name: str, device: torch.device) -> torch.autocast:
    """A context in which matrix products are in bf16 for ``bf16``, and nothing changes for ``fp32``; weights stay in fp32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=name == "bf16")


def measure(
    model: Transformer, task: Task, batches: Iterable[Batch], number_format: str, stop: Callable[[], bool] = lambda: False
) -> tuple[float, int] | None:
    """(summed loss, how many targets it is over), dropout off; None if ``stop`` became true on the way."""
    device = model.frontend.table.device
    nats, count = 0.0, 0
    with evaluating(model), torch.no_grad():
        for batch in batches:
            if stop():
                return None
            with precision(number_format, device):
                loss, targets = task.loss(model, batch.to(device))
            # Summed in double precision: a split can have millions of targets.
            nats, count = nats + loss.item(), count + targets
    return nats, count


def scale_of(counts: Counts) -> Scale:
    """How much text a token of one part stands for."""
    return Scale(counts.characters_per_token, counts.bytes_per_token)
