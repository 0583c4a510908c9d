"""Gradient of the mean loss over batches, and random batches and losses for measuring a training step of any model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.layers.context import Memory
from qkv.layers.tap import Tap
from qkv.models.heads.language_loss import language_loss
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single

SummedLoss = Callable[[Transformer, Batch], Tensor]
"""(model, batch) -> loss in nats, summed over targets."""


class BatchSizes(Protocol):
    """Sizes of a batch; ``source_length``: positions that the encoder reads per row."""

    @property
    def batch_size(self) -> int:
        """Number of rows."""
        ...

    @property
    def length(self) -> int:
        """Number of positions per row."""
        ...

    @property
    def source_length(self) -> int:
        """Number of positions that the encoder reads per row."""
        ...


def random_batch(model: Transformer, sizes: BatchSizes) -> Batch:
    """Build a random batch without padding: inputs for the front ends, and targets for the model's head."""
    generator = torch.Generator().manual_seed(0)
    read = model.frontend.random(sizes.batch_size, sizes.length, generator)
    source = model.encoder and model.encoder.frontend.random(sizes.batch_size, sizes.source_length, generator)
    targets = model.head.random(sizes.batch_size, sizes.length, generator)
    return Batch.of(read, targets, source, targets.numel())


def backward(
    model: Transformer, loss: SummedLoss, batches: Sequence[Batch], count: int, precision: torch.autocast
) -> Tensor:
    """Add the gradient of the mean loss over the ``count`` targets of all batches to the parameters' gradients; return
    the summed loss in nats.

    Auxiliary losses of branches contribute gradients, weighted by the targets of each batch, but not to the sum.
    precision: autocast context of the forward passes.
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
    """Run the encoder on the batch's source, and return its memory; None without a source."""
    return None if batch.source is None else model.encode(batch.source)


def summed_loss(model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
    """Compute the summed loss in nats: the language-model loss if the head predicts tokens, else the head's own
    loss.
    """
    memory = memory_of(model, batch)
    if model.spec.head.predicts_tokens:
        return language_loss(model, batch.input, batch.targets, memory=memory, tap=tap)
    answer = at_least_single(model(batch.input, memory=memory, tap=tap)[0])
    return model.head.loss(answer, batch.targets)
