"""Random batches and losses for measuring a training step of any model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.data.batch import Batch
from qkv.inspection.cost import Cost
from qkv.layers.context import Memory
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec import heads

LanguageLoss = Callable[..., Tensor]
"""(model, signal, targets, memory=…) -> summed loss of a language model."""


def random_batch(model: Transformer, cost: Cost) -> Batch:
    """Random signals for the front ends, targets for the model's head; without padding."""
    generator = torch.Generator().manual_seed(0)
    read = model.frontend.random(cost.batch_size, cost.length, generator)
    source = model.encoder and model.encoder.frontend.random(cost.batch_size, cost.source_length, generator)
    return Batch.of(read, _targets(model, cost.batch_size, cost.length, generator), source)


def _targets(model: Transformer, rows: int, length: int, generator: torch.Generator) -> Tensor:
    head = model.spec.head
    if isinstance(head, heads.ClassificationHead):
        return torch.randint(head.num_classes or 1, (rows,), generator=generator)
    if isinstance(head, heads.TokenHead):
        return torch.randint(head.num_classes or 1, (rows, length), generator=generator)
    if isinstance(head, heads.SpanHead):
        return torch.randint(length, (rows, 2), generator=generator)
    if isinstance(head, heads.RegressionHead):
        return torch.randn(rows, generator=generator)
    return torch.randint(model.vocab_size or 1, (rows, length), generator=generator)


def memory_of(model: Transformer, batch: Batch) -> Memory | None:
    """Keyword arguments of a model call: the memory of the batch's encoded sources, if any."""
    return None if batch.source is None else model.encode(batch.source)


def loss_by_head(language: LanguageLoss) -> Callable[[Transformer, Batch], tuple[Tensor, int]]:
    """Return a function (model, batch) -> (summed loss, number of targets).

    The loss is ``language`` for language model heads, squared error for regression, else cross entropy.
    """

    def loss(model: Transformer, batch: Batch) -> tuple[Tensor, int]:
        memory, count = memory_of(model, batch), batch.targets.numel()
        if isinstance(model.spec.head, heads.LanguageModelHead):
            return language(model, batch.input, batch.targets, memory=memory), count
        answer = at_least_single(model(batch.input, memory=memory)[0])
        if isinstance(model.spec.head, heads.RegressionHead):
            return (answer[:, 0] - batch.targets).square().sum(), count
        if isinstance(model.spec.head, heads.SpanHead):
            answer = answer.transpose(1, 2)
        return F.cross_entropy(answer.flatten(0, -2), batch.targets.flatten(), reduction="sum"), count

    return loss
