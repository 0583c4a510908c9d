"""Linear layer by the native kernel: forward only, fp32 on CPU, weights stored row by row."""

from __future__ import annotations

from torch import Tensor

from qkv.ops.linear import reference
from qkv.ops.native import library
from qkv.ops.native.library import available as available


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute y = x W^T + b without gradients: x (…, I), weight (O, I), bias (O) or None -> (…, O)."""
    if not library.readable(x):
        return reference.linear(x, weight, bias)
    return library.product(x, weight, bias)
