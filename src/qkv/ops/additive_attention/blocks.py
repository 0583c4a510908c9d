"""Additive attention scores by blocks of queries; the backward pass recomputes tanh.

T = tanh(q_i + k_j)    S = T v    dT = dS v^T (1 - T²)    dq_i = Σ_j dT    dk_j = Σ_i dT    dv = Σ dS T

Memory: B·n·M·A numbers for blocks of n queries, instead of B·N·M·A.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 1 << 22
"""Approximate number of elements per block."""


def scores(q: Tensor, keys: Tensor, v: Tensor, block: int = BLOCK) -> Tensor:
    """Compute additive attention scores S (B, N, M) of projected q = W_q x (B, N, A) and keys = W_k m (B, M, A); v (A).

    ``block``: maximum number of elements B·n·M·A computed at once, for n queries (n at least 1).
    """
    return _Scores.apply(q, keys, v, block)  # type: ignore[no-any-return]


def _blocks(q: Tensor, keys: Tensor, block: int) -> Iterator[slice]:
    step = max(1, block // max(1, keys.numel()))
    return (slice(first, first + step) for first in range(0, q.shape[1], step))


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, keys: Tensor, v: Tensor, block: int) -> Tensor:
        ctx.save_for_backward(q, keys, v)
        ctx.block = block
        out = q.new_zeros(*q.shape[:2], keys.shape[1])
        for part in _blocks(q, keys, block):
            out[:, part] = (q[:, part, None] + keys[:, None]).tanh_() @ v
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (q, keys, v), (grad,) = ctx.saved_tensors, grads
        dq, dk, dv = (torch.zeros_like(t) for t in (q, keys, v))
        for part in _blocks(q, keys, ctx.block):
            t = (q[:, part, None] + keys[:, None]).tanh_()
            g = grad[:, part]
            dv += g.reshape(-1) @ t.flatten(0, 2)
            dt = t.square_().neg_().add_(1.0).mul_(v).mul_(g[..., None])
            dq[:, part] = dt.sum(2)
            dk += dt.sum(1)
        return dq, dk, dv, None
