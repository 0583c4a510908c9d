"""Causal dilated convolution as one matrix product.

y_i = Σ_t W_t x_{i - t·dilation} + b,  t < K          x (B, N, D)   W (E, K·D)   y (B, N, E)
"""

from __future__ import annotations

import torch
from torch import Tensor


def taps(window: Tensor, kernel_size: int, dilation: int, segments: Tensor | None = None) -> Tensor:
    """The inputs of each output side by side, latest first: (B, (K-1)·dilation + N, D) -> (B, N, K·D).

    ``window`` is the sequence with its past in front. segments (B, N): what belongs to an earlier document counts as 0.
    """
    past = (kernel_size - 1) * dilation
    length = window.shape[1] - past
    parts = []
    for t in range(kernel_size):
        part = window[:, past - t * dilation : past - t * dilation + length]
        parts.append(part if segments is None else part * same_document(segments, t * dilation)[..., None])
    return torch.cat(parts, -1)


def same_document(segments: Tensor, back: int) -> Tensor:
    """Whether the position ``back`` earlier belongs to the same document; (B, N)."""
    if back == 0:
        return torch.ones_like(segments, dtype=torch.bool)
    earlier = torch.full_like(segments, -1)
    earlier[:, back:] = segments[:, :-back] if back < segments.shape[1] else earlier[:, back:]
    return earlier == segments
