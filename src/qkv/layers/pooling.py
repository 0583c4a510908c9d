"""Pooling of a sequence of vectors to one vector."""

from __future__ import annotations

import torch
from torch import Tensor


def pooled(x: Tensor, lengths: Tensor | None, how: str) -> Tensor:
    """Pool x (B, N, D) -> (B, D) over the first ``lengths`` (B) positions of each row; None for all.

    how: ``first``, ``last``, ``mean`` or ``max`` over unpadded positions. An empty row gives 0.
    """
    if lengths is None:
        lengths = torch.full(x.shape[:1], x.shape[1], device=x.device)
    real = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
    empty = (lengths == 0)[:, None]
    if how == "first":
        found = x[:, 0]
    elif how == "last":
        found = x[torch.arange(x.shape[0], device=x.device), (lengths - 1).clamp(min=0)]
    elif how == "mean":
        found = x.masked_fill(~real, 0).sum(1) / lengths.clamp(min=1)[:, None]
    else:
        found = x.masked_fill(~real, -torch.inf).max(1).values
    return found.masked_fill(empty, 0)
