"""Torch's fused CPU attention kernel with its fp32 matrix products computed by oneDNN, forward and backward.

Faster for long sequences only; for short sequences the call overhead exceeds the gain.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.selection.onednn import allowed


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute causal or full self-attention O (B, H, N, Dv) for Dk = Dv; shapes as in ``reference``.

    Not for ALiBi, a soft cap, dropout, or empty input.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    causal = not problem.mask.sees_all(problem.sites.span())
    return _Fused.apply(q, k, v, causal, problem.scale)  # type: ignore[no-any-return]


def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Return (O, log-sum-exp of each query's scores). Requires as many K/V heads as query heads."""
    with allowed():
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)


def backward(grad: Tensor, saved: tuple[Tensor, ...], causal: bool, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients (dQ, dK, dV). ``saved``: q, k, v and both results of ``forward``."""
    with allowed():
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, *saved, 0.0, causal, scale=scale
        )


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
        out, log_sum = forward(q, k, v, causal, scale)
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.options = causal, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *backward(grads[0], ctx.saved_tensors, *ctx.options), None, None
