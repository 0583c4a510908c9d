"""Reference implementation of causal linear attention (Katharopoulos et al. 2020).

    o_i = φ(q_i) Σ_{j<=i} φ(k_j)^T v_j / (φ(q_i) · Σ_{j<=i} φ(k_j))        φ(x) = elu(x) + 1

    q, k (B, H, N, Dk)   v (B, H, N, Dv)   state: S (B, H, Dk, Dv), z (B, H, Dk), the two sums

The quadratic form below is used for testing; models use ``chunked``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

State = tuple[Tensor, Tensor]


def feature(x: Tensor) -> Tensor:
    """Compute φ(x) = elu(x) + 1 > 0: e^x below 0, x + 1 above."""
    # The sum elu(x) + 1 would lose precision below 0 and be exactly 0 below -17; weights are ratios of φ.
    return x.clamp(max=0).exp() + F.relu(x)


def mean(above: Tensor, below: Tensor) -> Tensor:
    """Divide the weighted sum ``above`` (…, Dv) by the sum of weights ``below`` (…).

    If ``below`` is nearly 0, so is ``above``, which is then returned undivided: 1 / below and its square, a factor of
    the gradients, would overflow.
    """
    exact = torch.finfo(below.dtype)
    return above / below.where(below > exact.tiny / exact.eps, 1.0)[..., None]


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, state: State | None = None, valid: Tensor | None = None
) -> tuple[Tensor, State]:
    """Return (O (B, H, N, Dv), state after the last position). valid (B, N): True at unpadded positions.

    q, k, v: see the module's docstring; ``state``: state after earlier positions, None at the start of a row.
    """
    if valid is not None:
        k = k * valid[:, None, :, None]
    s, z = state or (q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), q.new_zeros(*q.shape[:2], q.shape[-1]))
    scores = (q @ k.transpose(-1, -2)).tril()
    above = scores @ v + q @ s
    below = scores.sum(-1) + (q * z[:, :, None]).sum(-1)
    out = mean(above, below)
    return out, (s + k.transpose(-1, -2) @ v, z + k.sum(2))
