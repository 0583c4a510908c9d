"""Gradient of the mean loss over batches; random batches and losses for measuring a training step of any model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.layers.context import Memory
from qkv.layers.tap import Tap
from qkv.models.language_loss import language_loss
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single

SummedLoss = Callable[[Transformer, Batch], Tensor]
"""(model, batch) -> loss in nats, summed over targets."""


class BatchSizes(Protocol):
    """Rows and positions of a batch; ``source_length``: of an encoder's input."""

    @property
    def batch_size(self) -> int:
        """Rows."""
        ...

    @property
    def length(self) -> int:
        """Positions of a row."""
        ...

    @property
    def source_length(self) -> int:
        """Positions of a source."""
        ...


def random_batch(model: Transformer, sizes: BatchSizes) -> Batch:
    """Random signals for the front ends, targets for the model's head; without padding."""
    generator = torch.Generator().manual_seed(0)
    read = model.frontend.random(sizes.batch_size, sizes.length, generator)
    if model.wide is not None:
        read = model.wide.random(read, generator)
    source = model.encoder and model.encoder.frontend.random(sizes.batch_size, sizes.source_length, generator)
    targets = model.head.random(sizes.batch_size, sizes.length, generator)
    return Batch.of(read, targets, source, targets.numel())


def backward(
    model: Transformer, loss: SummedLoss, batches: Sequence[Batch], count: int, precision: torch.autocast
) -> Tensor:
    """Add the gradient of the mean loss over the ``count`` targets of all batches; return the summed loss in nats.

    Losses of branches themselves add their gradient, weighted by the targets of each batch, and not their value.
    precision: context of the forward passes.
    """
    total = torch.zeros((), device=model.device)
    for batch in batches:
        model.share_losses(batch.num_targets / count)
        with precision:
            nats = loss(model, batch)
        (nats / count).backward()
        total += nats.detach()
    return total


def memory_of(model: Transformer, batch: Batch) -> Memory | None:
    """Memory of the batch's encoded sources, if any."""
    return None if batch.source is None else model.encode(batch.source)


def summed_loss(model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
    """Summed loss, that of a language model for heads that predict tokens, else the head's own."""
    memory = memory_of(model, batch)
    if model.spec.head.predicts_tokens:
        return language_loss(model, batch.input, batch.targets, memory=memory, tap=tap)
    answer = at_least_single(model(batch.input, memory=memory, tap=tap)[0])
    return model.head.loss(answer, batch.targets)
