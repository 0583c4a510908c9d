"""Attention as two batched matrix products with materialised scores, for short sequences and any mask.

Torch's fused kernel processes masked sequences row by row. If the scores of all heads roughly fit into the cache,
batched products are several times faster in bf16, forward and backward.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.dropout import dropout


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute attention O (B, H, N, Dv) for any ``problem``; see ``reference`` for the shapes."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    visible = problem.sites.visible(problem.mask, q.shape[1])
    bias = problem.bias()
    # A row with only -inf would give NaN, in the gradient too.
    blind = ~visible.any(-1, keepdim=True)
    visible = visible | blind
    hidden = torch.zeros((), dtype=q.dtype, device=q.device) if bias is None else bias.to(q.dtype)
    hidden = torch.where(visible, hidden, -torch.inf)
    with torch.autocast(q.device.type, enabled=False):  # autocast would copy bf16 scores to fp32 for the softmax
        p = (problem.capped((q * problem.scale) @ k.transpose(-1, -2)) + hidden).softmax(-1)
        p = p.masked_fill(blind, 0.0)
        return dropout(p, problem.dropout) @ v
