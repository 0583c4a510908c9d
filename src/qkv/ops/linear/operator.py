"""Linear layer by oneDNN's fused operator: fp32 on CPU.

For one row it reaches memory bandwidth, unlike torch's matrix–vector product. Unlike oneDNN in torch's own products
(``qkv.ops.selection.onednn``), it does not need torch's reduced-precision setting. So it computes in full fp32 also on
processors with bf16 matrix units (AMX). ``available`` verifies this.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.linear.derivatives import differentiable
from qkv.ops.selection.onednn import keeps_every_bit
from qkv.system.optional import turned_off


def available() -> bool:
    """Return whether this build of torch has oneDNN's fused linear operator and it computes exactly in fp32 here."""
    return not turned_off("onednn-operator") and _exact()


@cache
def _exact() -> bool:
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return keeps_every_bit(lambda a, b: forward(a, b.mT), batches=False)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none", variant: str = ""
) -> Tensor:
    """Compute y = φ(x W^T + b) without gradients: x (…, I), weight (O, I), bias (O) or None -> (…, O).

    activation, variant: oneDNN's names for φ; default: identity.
    """
    if bias is not None:
        bias = bias.contiguous()  # the operator ignores its stride
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], variant)


def _by_weight(a: Tensor, weight: Tensor) -> Tensor:
    """Compute a W by the operator, or by torch if gradients are enabled (second derivatives)."""
    return a @ weight if torch.is_grad_enabled() else forward(a, weight.t())


# dW by torch, as the operator would copy a transposed g.
_differentiable = differentiable(forward, _by_weight, torch.matmul)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute y = x W^T + b with gradients: x (…, I), weight (O, I), bias (O) or None -> (…, O)."""
    if torch.compiler.is_compiling():
        return F.linear(x, weight, bias)  # the compiler selects the operator itself if it is faster
    return _differentiable(x, weight, bias)
