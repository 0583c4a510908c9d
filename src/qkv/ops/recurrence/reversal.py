"""Reversal of padded rows: unpadded positions in reverse order, padding unchanged."""

from __future__ import annotations

import torch
from torch import Tensor


def reversal(length: int, lengths: Tensor | None, device: torch.device) -> Tensor:
    """Return the index (B or 1, N) that reverses the first lengths[b] positions of each row; it is its own inverse."""
    steps = torch.arange(length, device=device)[None]
    if lengths is None:
        return steps.flip(1)
    return torch.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)


def gather_positions(x: Tensor, index: Tensor) -> Tensor:
    """Gather positions of each row: x[b, index[b, i]] for x (B, N) or (B, N, D) and index (B or 1, N)."""
    index = index.expand(x.shape[0], -1)
    return x.gather(1, index if x.dim() == 2 else index[..., None].expand_as(x))
