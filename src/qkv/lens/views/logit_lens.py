"""Logit lens: what the model would predict if its blocks ended at each point of the residual stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.lens.views.stream import StreamPoint, read_stream
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.system.errors import UserError

_CLASSES = ("language_model", "classification", "tokens")
"""Heads whose outputs are logits of classes, of which one is right."""


@dataclass(frozen=True)
class LogitLens:
    """Predictions from P points of the residual stream, for B rows of N positions (1 for a head that pools).

    If the outputs are logits of classes, such as tokens: ids (P, B, N, k) of the most probable ones and their
    probabilities (P, B, N, k), entropy (P, B, N), and divergence KL(p_last ‖ p_point) (P, B, N), both in nats. For
    other heads these are None, and ``outputs`` (P, B, …) holds the outputs at each point, else None.

    order: order of norms and branches, such as "pre". note: sentence about what the lens means in this model.
    """

    points: tuple[StreamPoint, ...]
    ids: Tensor | None
    probabilities: Tensor | None
    entropy: Tensor | None
    divergence: Tensor | None
    outputs: Tensor | None
    order: str
    note: str


class _Reading(NamedTuple):
    ids: Tensor
    probabilities: Tensor
    entropy: Tensor
    divergence: Tensor


@torch.no_grad()
def logit_lens(
    model: Transformer,
    signal: Signal | Tensor,
    k: int = 5,
    source: Signal | Tensor | None = None,
    positions: Sequence[int] | None = None,
) -> LogitLens:
    """Read the residual stream before the first branch and after each branch through the model's own final norm, head
    and multipliers (logit lens, nostalgebraist 2020).

    The norm's scale is that of the vector that is read, as in the model itself; the last point gives the model's
    output. With a depth average, whose result the final norm reads, and without blocks, a point "output" with the
    model's own output follows. positions: those that are read, by default all; only for heads with outputs for each
    position. source: input of the encoder. k: number of classes that are named.

    Raises ``UserError`` for k < 1 and for a position outside the row.
    """
    if k < 1:
        raise UserError(f"the logit lens names the k most probable classes; k is {k}, allowed: at least 1")
    stream = read_stream(model, signal, source)
    points, chosen = stream.points, _chosen(model, positions, stream.output)
    last, outputs = chosen(stream.output), (chosen(stream.read(x)) for x in stream.vectors)
    if model.depth_average is not None or not points:
        points, outputs = (*points, StreamPoint("output", len(model.walked), "output")), chain(outputs, [last])
    order = model.spec.layers[-1].order if model.spec.layers else "pre"
    if model.spec.head.serves not in _CLASSES:
        values = torch.stack(list(outputs))
        return LogitLens(points, None, None, None, None, values, order, _note(order))
    final = _logs(last)
    shares = final.exp()
    readings = [_reading(_logs(output), final, shares, k) for output in outputs]
    ids, probabilities, entropy, divergence = (torch.stack(each) for each in zip(*readings, strict=True))
    return LogitLens(points, ids, probabilities, entropy, divergence, None, order, _note(order))


def _chosen(model: Transformer, positions: Sequence[int] | None, output: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function that selects the positions of an output (B, N, C)."""
    if positions is None:
        return lambda values: values
    count = output.shape[1]
    if not model.spec.head.per_position or output.dim() != 3:
        raise UserError(f"the head {model.spec.head.kind!r} has no output for each position; leave positions out")
    wrong = next((i for i in positions if not -count <= i < count), None)
    if wrong is not None:
        raise UserError(f"position {wrong} is outside the row, which has {count} positions")
    return lambda values: values[:, list(positions)]


def _logs(output: Tensor) -> Tensor:
    """Return the logarithms of the probabilities (B, N, C) of logits (B, N, C) or (B, C)."""
    return at_least_single(output if output.dim() == 3 else output[:, None]).log_softmax(-1)


def _reading(logs: Tensor, final: Tensor, shares: Tensor, k: int) -> _Reading:
    """Return the most probable classes, their entropy, and their distance to the ``final`` ones, exp of it ``shares``.

    All are (B, N, C), logarithms but the last.
    """
    probabilities, ids = logs.topk(min(k, logs.shape[-1]), -1)
    entropy = -(logs.exp() * logs).nan_to_num().sum(-1)
    divergence = (shares * (final - logs)).nan_to_num().sum(-1)
    return _Reading(ids, probabilities.exp(), entropy, divergence.clamp(min=0))


def _note(order: str) -> str:
    if order == "post":
        return (
            "the stream after a branch has passed the branch's own norm, as the head reads it after the last block; "
            "between blocks the lens shows what the head would say of these normed vectors"
        )
    return "each point is read through the model's final norm with the scale of its own vector, then through the head"
