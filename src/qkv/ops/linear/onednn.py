"""The same product through oneDNN, which torch carries beside MKL.

Torch sends fp32 products on x86 to MKL, which on some processors runs at under half of their speed; the same wheel's
oneDNN does not. The operator has no derivative of its own, so the backward pass is written here:

    dx = g W      dW = g^T x      db = Σ g

Each is again one oneDNN product; the transposes are passed as views, because copies cost more than they gain.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def available() -> bool:
    """True if this build of torch has the operator."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grads[0].reshape(-1, weight.shape[0])
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        dx = _product(grad, weight.t(), None).view(x.shape) if needs_x else None
        dw = _product(grad.t(), x.reshape(-1, x.shape[-1]).t(), None) if needs_weight else None
        db = grad.sum(0) if ctx.has_bias and needs_bias else None
        return dx, dw, db


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """fp32 on CPU. x (…, I), weight (O, I), bias (O) or None -> (…, O)."""
    if torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return]
    return _product(x, weight, bias)
