"""Frozen linear layer with a low-rank adapter (LoRA, Hu et al. 2021), forward and backward with the least memory.

    y = x W^T + b + s z B^T        z = x A^T

    dx = g W + dz A        dz = s g B        dA = dz^T x        dB = s g^T z

W and b are frozen, so that no product with their gradients is computed and W may have quantised numbers. ``separate``
computes each term with autograd. ``fused`` adds the terms in place and remembers z and x. If x = f(u, v, …) is cheap to
compute, such as the product of a gated network, it remembers u, v, … in place of x and of all that f needs.

x (…, I)   W (O, I)   b (O) or None   A (R, I)   B (O, R)   y (…, O)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.ops.autocast import product_dtype, without_autocast
from qkv.ops.linear.choose import linear
from qkv.ops.quantized.packed import PackedMatrix
from qkv.ops.quantized.reference import by_weight
from qkv.ops.quantized.reference import linear as packed_linear
from qkv.ops.selection.choices import by_reference

Make = Callable[..., Tensor]
"""Function that computes x from one or more tensors, deterministic and without parameters."""


class LowRankMap(NamedTuple):
    """Frozen W and b, and the adapter A, B, s."""

    weight: Tensor | PackedMatrix
    bias: Tensor | None
    a: Tensor
    b: Tensor
    scale: float


def low_rank(make: Make, parts: Sequence[Tensor], how: LowRankMap) -> Tensor:
    """Compute y for x = ``make(*parts)``."""
    plain = not torch.is_grad_enabled() or torch.compiler.is_compiling() or by_reference()
    return (separate if plain else fused)(make, parts, how)


def separate(make: Make, parts: Sequence[Tensor], how: LowRankMap) -> Tensor:
    """Compute y by three linear layers."""
    x = make(*parts)
    y = linear(x, how.weight, how.bias)
    return y + how.scale * linear(linear(x, how.a), how.b)


def fused(make: Make, parts: Sequence[Tensor], how: LowRankMap) -> Tensor:
    """Compute y so that the backward pass needs only ``parts`` and z."""
    return _Fused.apply(make, how, how.a, how.b, *parts)  # type: ignore[no-any-return]


class _Fused(torch.autograd.Function):
    """``fused`` with its derivatives. A and B, which have gradients, are arguments besides ``how``."""

    @staticmethod
    def forward(ctx: Any, make: Make, how: LowRankMap, a: Tensor, b: Tensor, *parts: Tensor) -> Tensor:
        with torch.enable_grad():  # the same implementation as in the backward pass
            x = make(*(part.detach() for part in parts))
        dtype = product_dtype(x)
        with without_autocast(x):
            x = x.to(dtype)
            y = _frozen(x, how)
            z = x.reshape(-1, x.shape[-1]) @ a.to(dtype).t()
            y.view(-1, y.shape[-1]).addmm_(z, b.to(dtype).t(), alpha=how.scale)
        ctx.make, ctx.how = make, how
        ctx.save_for_backward(a, b, z, *parts)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        a, b, z, *parts = ctx.saved_tensors
        grad, needs = grads[0].reshape(-1, b.shape[0]), ctx.needs_input_grad[4:]
        again = torch.is_grad_enabled()  # derivatives of second order
        with torch.enable_grad():
            if not again:
                parts = [part.detach().requires_grad_(need) for part, need in zip(parts, needs, strict=True)]
            x = ctx.make(*parts)
        rows = x.reshape(-1, x.shape[-1]).to(grad.dtype)
        z = rows @ a.to(grad.dtype).t() if again else z
        dz = ctx.how.scale * (grad @ b.to(grad.dtype))
        da, db = (dz.t() @ rows).to(a.dtype), (ctx.how.scale * (grad.t() @ z)).to(b.dtype)
        if not any(needs):
            return None, None, da, db, *(None for _ in parts)
        dx = _by_frozen(grad, ctx.how).addmm_(dz, a.to(dz.dtype)).view(x.shape).to(x.dtype)
        leaves = [part for part, need in zip(parts, needs, strict=True) if need]
        each = iter(torch.autograd.grad(x, leaves, dx, create_graph=again))
        return None, None, da, db, *(next(each) if need else None for need in needs)


def _frozen(x: Tensor, how: LowRankMap) -> Tensor:
    """Compute x W^T + b in the dtype of x, in memory of its own."""
    if isinstance(how.weight, PackedMatrix):
        return packed_linear(x, how.weight, how.bias)
    return linear(x, how.weight.to(x.dtype), None if how.bias is None else how.bias.to(x.dtype))


def _by_frozen(grad: Tensor, how: LowRankMap) -> Tensor:
    """Compute g W in the dtype of g."""
    if isinstance(how.weight, PackedMatrix):
        return by_weight(grad, how.weight)
    return linear(grad, how.weight.to(grad.dtype).t())
