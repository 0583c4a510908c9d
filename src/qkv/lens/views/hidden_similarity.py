"""Similarity of hidden states: between positions at each depth, and between depths at each position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.layers.signal import Signal
from qkv.lens.views.stream import StreamPoint, stream_vectors
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single


@dataclass(frozen=True)
class HiddenSimilarity:
    """Inner products of the hidden states of B rows at P points of the residual stream.

    cosines (P, B, N, N): between positions at each point.   mean (P, B): mean over pairs of different positions, which
    rises towards 1 as tokens cluster; NaN for a row of one position.   depth (B, P, P): between points, mean over
    positions.   norms (P, B): mean length of the vectors. Padding is left out of means, and NaN in ``cosines``.
    """

    points: tuple[StreamPoint, ...]
    cosines: Tensor
    mean: Tensor
    depth: Tensor
    norms: Tensor


def hidden_similarity(
    model: Transformer,
    signal: Signal | Tensor,
    source: Signal | Tensor | None = None,
    stack: Literal["model", "encoder"] = "model",
) -> HiddenSimilarity:
    """Return the cosines of hidden states x_p,t at all points p of the residual stream, from one pass without dropout:
    x_p,s · x_p,t / (|x_p,s| |x_p,t|) over positions (Ethayarajh 2019), and x_p,t · x_q,t / (|x_p,t| |x_q,t|) over
    points.

    source: input of the encoder. Raises ``UserError`` for a stack without blocks, and for the stack "encoder" of a
    model without one.
    """
    signal = Signal.of(signal)
    points, vectors = stream_vectors(model, signal, source, stack)
    x = torch.stack([at_least_single(each) for each in vectors])
    lengths = Signal.of(source).lengths if stack == "encoder" and source is not None else signal.lengths
    counts = torch.full(x.shape[1:2], x.shape[2], device=x.device) if lengths is None else lengths
    real = torch.arange(x.shape[2], device=x.device) < counts[:, None]
    units = F.normalize(x, dim=-1)
    cosines = (units @ units.mT).masked_fill(~(real[:, :, None] & real[:, None]), torch.nan)
    off = ~torch.eye(x.shape[2], dtype=torch.bool, device=x.device)
    return HiddenSimilarity(
        points,
        cosines,
        cosines.masked_fill(~off, torch.nan).nanmean((2, 3)),
        _mean(torch.einsum("pbnd,qbnd->bpqn", units, units), real[:, None, None]),
        _mean(x.norm(dim=-1), real),
    )


def _mean(values: Tensor, real: Tensor) -> Tensor:
    """Return the mean over the last axis of values where ``real`` is True."""
    return values.masked_fill(~real, torch.nan).nanmean(-1)
