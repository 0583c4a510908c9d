"""Derivatives of a linear layer, for implementations that compute matrix products without derivatives.

y = x W^T + b:

    dx = g W        dW = g^T x        db = Σ g
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Product = Callable[[Tensor, Tensor], Tensor]
Forward = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def derivatives(
    ctx: Any, grad: Tensor, by_weight: Product, product: Product
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute the gradients of x, weight and bias; None for gradients that are not needed.

    ``by_weight``, ``product``: functions for the matrix products dx = g W and dW = g^T x. ctx: context of a forward
    pass, with weight saved, and x if the weight needs a gradient.
    """
    x, weight = ctx.saved_tensors
    rows, grad = grad.shape[:-1], grad.reshape(-1, weight.shape[0])
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad
    dx = by_weight(grad, weight).view(*rows, weight.shape[1]) if needs_x else None
    dw = product(grad.t(), x.reshape(-1, x.shape[-1])) if needs_weight else None
    return dx, dw, grad.sum(0) if needs_bias else None


def save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    """Save x and weight for ``derivatives``."""
    ctx.save_for_backward(*inputs[:2])


def differentiable(forward: Forward, by_weight: Product, product: Product) -> Forward:
    """Return a differentiable version of ``forward``; see ``derivatives``."""

    class Products(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)  # only dW needs x
            return forward(x, weight, bias)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            return derivatives(ctx, grads[0], by_weight, product)

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if torch.is_grad_enabled():
            return Products.apply(x, weight, bias)  # type: ignore[no-any-return]
        return forward(x, weight, bias)

    return linear
