"""Dilated convolution as one matrix product.

y_i = Σ_t W_t x_{i + a - t·dilation} + b,  t < K          x (B, N, D)   W (E, K·D)   y (B, N, E)

a: number of positions after i that the kernel covers; 0: causal.
"""

from __future__ import annotations

import torch
from torch import Tensor


def taps(window: Tensor, kernel_size: int, dilation: int, segments: Tensor | None = None, ahead: int = 0) -> Tensor:
    """Concatenate the K inputs of each output, latest first: (B, (K-1)·dilation + N, D) -> (B, N, K·D).

    ``window``: N positions and (K-1)·dilation context positions, ``ahead`` of them after the N positions, the others
    before. segments (B, N): document numbers; inputs from other documents are replaced by 0.
    """
    span = (kernel_size - 1) * dilation
    length = window.shape[1] - span
    parts = []
    for t in range(kernel_size):
        part = window[:, span - t * dilation : span - t * dilation + length]
        parts.append(part if segments is None else part * same_document(segments, t * dilation - ahead)[..., None])
    return torch.cat(parts, -1)


def same_document(segments: Tensor, back: int) -> Tensor:
    """Build a mask (B, N): True if the position ``back`` steps earlier (if negative, later) is in the same document."""
    if back < 0:
        return same_document(segments.flip(1), -back).flip(1)
    if back == 0:
        return torch.ones_like(segments, dtype=torch.bool)
    earlier = torch.full_like(segments, -1)
    earlier[:, back:] = segments[:, :-back] if back < segments.shape[1] else earlier[:, back:]
    return earlier == segments
