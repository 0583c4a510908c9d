"""Reference implementation of a linear layer: y = x W^T + b.

x (…, I)   W (O, I)   b (O) or None   y (…, O)
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute y = x W^T + b by ``torch.nn.functional.linear``, for any dtype, device and autocast setting."""
    return F.linear(x, weight, bias)
