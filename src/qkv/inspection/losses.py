"""Random batches and losses for measuring a training step of any model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.data.batch import Batch
from qkv.inspection.cost import Cost
from qkv.layers.context import Memory
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single

LanguageLoss = Callable[..., Tensor]
"""(model, signal, targets, memory=…) -> summed loss of a language model."""


def random_batch(model: Transformer, cost: Cost) -> Batch:
    """Random signals for the front ends, targets for the model's head; without padding."""
    generator = torch.Generator().manual_seed(0)
    read = model.frontend.random(cost.batch_size, cost.length, generator)
    source = model.encoder and model.encoder.frontend.random(cost.batch_size, cost.source_length, generator)
    return Batch.of(read, model.head.random(cost.batch_size, cost.length, generator), source)


def memory_of(model: Transformer, batch: Batch) -> Memory | None:
    """Keyword arguments of a model call: the memory of the batch's encoded sources, if any."""
    return None if batch.source is None else model.encode(batch.source)


def loss_by_head(language: LanguageLoss) -> Callable[[Transformer, Batch], tuple[Tensor, int]]:
    """Return a function (model, batch) -> (summed loss, number of targets).

    The loss is ``language`` for heads that predict tokens, else the head's own.
    """

    def loss(model: Transformer, batch: Batch) -> tuple[Tensor, int]:
        memory, count = memory_of(model, batch), batch.targets.numel()
        if model.spec.head.predicts_tokens:
            return language(model, batch.input, batch.targets, memory=memory), count
        answer = at_least_single(model(batch.input, memory=memory)[0])
        return model.head.loss(answer, batch.targets), count

    return loss
