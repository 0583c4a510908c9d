"""Recurrent cells by torch's kernels in fp32, for inputs or autocast in lower precision."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.ops.at_least_single import at_least_single
from qkv.ops.recurrence import torch_loop
from qkv.ops.recurrence.reference import Memory, Weights


def recur(
    cell: str, x: Tensor, state: Memory, weights: Weights, lengths: Tensor | None = None
) -> tuple[Tensor, Memory]:
    """Return (h at all positions in the dtype of x, final state in the dtype of ``state``); see ``torch_loop``."""
    w, u, b, c = (at_least_single(t) for t in weights)
    with torch.autocast(x.device.type, enabled=False):
        hs, last = torch_loop.recur(
            cell, at_least_single(x), tuple(at_least_single(t) for t in state), (w, u, b, c), lengths
        )
    return hs.to(x.dtype), tuple(t.to(old.dtype) for t, old in zip(last, state, strict=True))
