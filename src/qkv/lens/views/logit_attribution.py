"""Direct logit attribution: the logit as a sum over the embedding, every head and every branch."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.layers.linear.quantized import QuantizedTable
from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder
from qkv.lens.views.heads import head_points, head_terms, linear_part, list_slots
from qkv.lens.views.stream import Stream, read_stream
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.spec.parts import NoNorm
from qkv.system.errors import UserError

_TOLERANCE = 1e-3
"""Largest difference of the sum of all parts from the logit, relative to the largest part."""
_ROUNDING = 0.03
"""The same with a head in 8 or 4 bits, which rounds the vectors that it reads."""


@dataclass(frozen=True)
class AttributionPart:
    """Part of a logit. path: of the branch, such as "blocks.3.branches.0", or "embedding" or "bias".

    layer: place of the block in the order of execution; -1 for "embedding" and "bias". part: kind of the branch. head:
    number of the head; None for what a branch adds besides its heads, such as a bias, and for branches without heads.
    """

    path: str
    layer: int
    part: str
    head: int | None = None


@dataclass(frozen=True)
class Attribution:
    """Parts of the logits of K classes at one position of B rows. values (C, B, K): of C parts; logits (B, K): their
    sum, the logits of the model, before a soft cap if it has one.   capped: True if the model caps these logits.
    error: largest difference of the sum from the logits, above rounding only with a head in 8 or 4 bits.
    """

    parts: tuple[AttributionPart, ...]
    values: Tensor
    logits: Tensor
    capped: bool
    error: float


@torch.no_grad()
def logit_attribution(
    model: Transformer,
    signal: Signal | Tensor,
    ids: Sequence[int],
    position: int = -1,
    source: Signal | Tensor | None = None,
) -> Attribution:
    """Divide the logits of the classes ``ids`` at ``position`` of each row among the terms of the residual stream.

    The last vector is a sum x = Σ_c x_c over the embedding, each head and what else each branch adds, and the final
    norm is linear once its scale is that of the full stream (Elhage et al. 2021): logit_k = Σ_c w_k · norm(x_c; x) +
    bias. Heads are those of branches whose output is a linear map of "head_outputs"; a model with segments has none.

    Raises ``UserError`` if the stream is not a sum (post-norm, reversible or missing residual connections, averages
    over depth), or if logits are not a linear function of it.
    """
    _check(model, ids)
    stream = read_stream(model, signal, source, head_points(model))
    count = stream.vectors[-1].shape[1]
    if not -count <= position < count:
        raise UserError(f"position {position} is outside the row, which has {count} positions")
    with evaluating(model):
        parts, terms = _terms(model, stream, position % count)
        values, logits = _logits(model, terms, stream.vectors[-1][:, [position % count]], list(ids))
    parts.append(AttributionPart("bias", -1, "bias"))
    error = float((values.sum(0) - logits).abs().max())
    narrow = any(isinstance(module, QuantizedTable) for module in model.head.modules())
    if error > (_ROUNDING if narrow else _TOLERANCE) * max(1.0, float(values.abs().max())):
        raise UserError(
            f"the logits are not a linear function of the residual stream: the parts miss them by {error:.2g}; "
            "allowed: final norms that are linear given their scale, and heads without hidden layers"
        )
    return Attribution(tuple(parts), values, logits, getattr(model.head, "cap", None) is not None, error)


def _check(model: Transformer, ids: Sequence[int]) -> None:
    """Raise ``UserError`` if the stream of the model is not a sum, or the classes are not among its outputs."""
    spec = model.spec
    blocks = [*spec.blocks]
    reasons = {
        "blocks normalise the stream itself (order 'post')": any(block.order == "post" for block in blocks),
        "blocks end with a norm of the stream (end_norm)": any(block.end_norm != NoNorm() for block in blocks),
        "residual connections do not keep it": not all(
            block.residual_of(j).keeps_input for block in blocks for j in range(len(block.branches))
        ),
        "reversible blocks have two streams": model.reversible,
        "blocks read averages over depth": model.depth_average is not None,
        "the model has no blocks": not blocks,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if reason is not None:
        raise UserError(f"the residual stream is not a sum of branches, because {reason}; attribution is not defined")
    if spec.head.serves not in ("language_model", "tokens"):
        raise UserError(
            f"the head {spec.head.kind!r} has no logits of classes for each position; allowed: language_model, tokens"
        )
    outputs = model.head.num_outputs
    wrong = next((i for i in ids if not 0 <= i < outputs), None)
    if wrong is not None or not ids:
        raise UserError(f"class {wrong} does not exist; allowed: ids from 0 to {outputs - 1}, at least one")


def _terms(model: Transformer, stream: Stream, place: int) -> tuple[list[AttributionPart], list[Tensor]]:
    """Return the terms of the last vector at a position, each (B, 1, D), and what they belong to."""
    parts, terms = [AttributionPart("embedding", -1, "embedding")], [stream.vectors[0][:, [place]]]
    slots = {slot.name: slot for slot in list_slots(model)}
    calls = Counter[str]()
    for point, before, after in zip(stream.points[1:], stream.vectors, stream.vectors[1:], strict=False):
        path = point.path.rpartition(".")[0]
        heads = head_terms(slots[path], stream.records, calls[path], [place], before.shape[-1])
        calls[path] += 1
        parts += [AttributionPart(path, point.layer, point.part, h) for h in range(len(heads))]
        parts.append(AttributionPart(path, point.layer, point.part))
        terms += [*heads, (after - before)[:, [place]] - sum(heads)]
    return parts, terms


def _logits(model: Transformer, terms: Sequence[Tensor], x: Tensor, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Return (part of the logits (C, B, K) of each term, the biases of norm and head last; the logits (B, K))."""
    context = Context(torch.zeros(1, 1, dtype=torch.long, device=x.device), tap=(tap := Recorder("scale")))
    normed = model.norm(x, context)
    linear = linear_part(model.norm, [*terms, x], next(iter(tap.records.values()), None))
    head: Any = copy.copy(model.head)
    head.cap = None  # of the copy: the model keeps its soft cap
    vectors = torch.stack([*linear[:-1], normed - linear[-1], torch.zeros_like(x), normed])
    outputs = head(vectors.flatten(0, 1), None).unflatten(0, vectors.shape[:2])[..., 0, ids]
    *values, bias, zero, logits = outputs
    return torch.stack([*(each - zero for each in values), bias]), logits
