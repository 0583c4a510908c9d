"""Attention as two plain products with the scores kept between them, for short sequences under any mask.

Torch's fused kernel walks through a masked sequence row by row; where the scores of all heads fit into the cache or not far beyond, batched
products are several times faster in bf16, forward and backward.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.ops.attention.problem import Problem
from qkv.ops.dropout import dropout


def attention(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> Tensor:
    """O (B, H, N, Dv); see ``reference`` for the shapes."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    visible = problem.sites.visible(problem.mask, q.shape[1])
    bias = problem.bias()
    # A row of nothing but -inf would be NaN, and so would its gradient.
    blind = ~visible.any(-1, keepdim=True)
    visible = visible | blind
    hidden = torch.zeros((), dtype=q.dtype, device=q.device) if bias is None else bias.to(q.dtype)
    hidden = torch.where(visible, hidden, -torch.inf)
    with torch.autocast(q.device.type, enabled=False):  # which would compute the softmax of bf16 scores in a copy of them
        p = (problem.capped((q * problem.scale) @ k.transpose(-1, -2)) + hidden).softmax(-1)
        p = p.masked_fill(blind, 0.0)
        return dropout(p, problem.dropout) @ v
