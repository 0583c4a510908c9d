"""Linear layer by oneDNN, fp32 on CPU, with gradients.

    y = x W^T + b        dx = g W      dW = g^T x      db = Σ g

Each of the three products is one call; transposes are passed as views, which oneDNN supports. y and dx are products
with the weights, for which the fused operator has the least overhead. It is not used for dW, since it would copy the
transposed g.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.linear import operator
from qkv.ops.linear.derivatives import derivatives, differentiable, save
from qkv.ops.selection.onednn import allowed


def _permitted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    with allowed():
        return F.linear(x, weight, bias)


@cache
def _fused() -> bool:
    return operator.available()


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return operator.forward(x, weight, bias) if _fused() else _permitted(x, weight, bias)


def _by_weight(a: Tensor, weight: Tensor) -> Tensor:
    """Compute a W by ``_forward``, or by a differentiable product if second derivatives are needed."""
    return _product(a, weight) if torch.is_grad_enabled() else _forward(a, weight.t(), None)


def _product(a: Tensor, b: Tensor) -> Tensor:
    with allowed():
        return a @ b


# The compiler cannot trace the context manager ``allowed``. As custom operators, the products are opaque to it. These
# are used only while compiling, since a custom operator adds microseconds per call.
_boxed_forward = torch.library.custom_op("qkv::onednn_linear", _permitted, mutates_args=())
_boxed_product = torch.library.custom_op("qkv::onednn_product", _product, mutates_args=())


@_boxed_forward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@_boxed_product.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


_boxed_forward.register_autograd(
    lambda ctx, grad: derivatives(ctx, grad, _boxed_product, _boxed_product), setup_context=save
)


_differentiable = differentiable(_forward, _by_weight, _product)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute y = x W^T + b with gradients: x (…, I), weight (O, I), bias (O) or None -> (…, O)."""
    if torch.compiler.is_compiling():
        return _boxed_forward(x, weight, bias)
    return _differentiable(x, weight, bias)
