"""Attention by torch's fused kernel, which does not materialise the scores."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import AllOf, Causal


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute attention O (B, H, N, Dv) for problems without a soft cap; see ``reference`` for the shapes."""
    sites, grouped = problem.sites, q.shape[1] != k.shape[1]
    options = {"scale": problem.scale, "dropout_p": problem.dropout, "enable_gqa": grouped}
    if problem.slopes is None and problem.added is None:
        if sites.full or (sites.aligned and problem.mask.sees_all(sites.span())):
            return F.scaled_dot_product_attention(q, k, v, **options)
        if sites.aligned and q.shape[2] == k.shape[2] and is_causal_here(problem):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)
    visible, blind = sites.once((problem.mask, q.shape[1]), lambda: _visible(problem, q.shape[1]))
    bias = problem.bias()
    mask = visible if bias is None else torch.where(visible, bias.to(q.dtype), -torch.inf)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    return out if blind is None else out.masked_fill(blind, 0.0)


def _visible(problem: AttentionProblem, num_heads: int) -> tuple[Tensor, Tensor | None]:
    """Return (mask of visible keys (B or 1, H or 1, N, M), mask of queries without visible keys).

    For such queries all keys are marked visible. The second mask is None for aligned sites, which have no such queries.
    """
    visible = problem.sites.visible(problem.mask, num_heads)
    if problem.sites.aligned:
        return visible, None
    blind = ~visible.any(-1, keepdim=True)
    return visible | blind, blind


def is_causal_here(problem: AttentionProblem) -> bool:
    """Return whether the mask equals the causal mask for the positions of ``problem.sites``."""
    mask, span = problem.mask, problem.sites.span()
    if isinstance(mask, AllOf):
        return any(isinstance(m, Causal) for m in mask.masks) and all(
            isinstance(m, Causal) or m.sees_all(span) for m in mask.masks
        )
    return isinstance(mask, Causal)
