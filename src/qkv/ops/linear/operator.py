"""Linear layer by oneDNN's fused operator: forward only, fp32 on CPU.

For one row it reaches memory bandwidth, unlike torch's matrix–vector product.
"""

from __future__ import annotations

import torch
from torch import Tensor


def available() -> bool:
    """True if this build of torch has oneDNN's fused linear operator."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none", variant: str = ""
) -> Tensor:
    """y = φ(x W^T + b) without gradients: x (…, I), weight (O, I), bias (O) or None -> (…, O).

    activation, variant: oneDNN's names of φ, by default the identity.
    """
    if bias is not None:
        bias = bias.contiguous()  # the operator does not look at its stride
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], variant)
