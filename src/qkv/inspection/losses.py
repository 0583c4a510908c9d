"""Random batches and losses for measuring a training step of any model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.data.batch import Batch, PairBatch
from qkv.inspection.cost import Cost
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec import heads
from qkv.spec.model import Model

LanguageLoss = Callable[..., Tensor]
"""(model, ids, targets, memory=…) -> summed loss of a language model."""


def random_batch(cost: Cost) -> Batch:
    """Random ids, targets for the model's head, and sources for an encoder; without padding."""
    model, rows, length = cost.model, cost.batch_size, cost.length
    assert model.vocab_size is not None
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.vocab_size, (rows, length + 1), generator=generator)
    targets = _targets(model.head, ids, generator)
    if model.encoder is None:
        return Batch(ids[:, :-1].contiguous(), targets)
    source = torch.randint(_source_ids(model), (rows, cost.source_length), generator=generator)
    return PairBatch(ids[:, :-1].contiguous(), targets, source=source)


def _source_ids(model: Model) -> int:
    """Vocabulary size of the encoder."""
    assert model.encoder is not None
    known = model.vocab_size if model.encoder.share_embedding else model.encoder.vocab_size
    assert known is not None
    return known


def _targets(head: heads.Head, ids: Tensor, generator: torch.Generator) -> Tensor:
    rows, length = ids.shape[0], ids.shape[1] - 1
    if isinstance(head, heads.ClassificationHead):
        return torch.randint(head.num_classes or 1, (rows,), generator=generator)
    if isinstance(head, heads.TokenHead):
        return torch.randint(head.num_classes or 1, (rows, length), generator=generator)
    if isinstance(head, heads.SpanHead):
        return torch.randint(length, (rows, 2), generator=generator)
    if isinstance(head, heads.RegressionHead):
        return torch.randn(rows, generator=generator)
    return ids[:, 1:].contiguous()


def memory_of(model: Transformer, batch: Batch) -> dict[str, Any]:
    """Keyword arguments of a model call: the memory of the batch's encoded sources, if any."""
    source = getattr(batch, "source", None)
    return {} if source is None else {"memory": model.encode(source)}


def loss_by_head(language: LanguageLoss) -> Callable[[Transformer, Batch], tuple[Tensor, int]]:
    """Return a function (model, batch) -> (summed loss, number of targets).

    The loss is ``language`` for language model heads, squared error for regression, else cross entropy.
    """

    def loss(model: Transformer, batch: Batch) -> tuple[Tensor, int]:
        given, count = memory_of(model, batch), batch.targets.numel()
        if isinstance(model.spec.head, heads.LanguageModelHead):
            return language(model, batch.ids, batch.targets, **given), count
        answer = at_least_single(model(batch.ids, **given)[0])
        if isinstance(model.spec.head, heads.RegressionHead):
            return (answer[:, 0] - batch.targets).square().sum(), count
        if isinstance(model.spec.head, heads.SpanHead):
            answer = answer.transpose(1, 2)
        return F.cross_entropy(answer.flatten(0, -2), batch.targets.flatten(), reduction="sum"), count

    return loss
