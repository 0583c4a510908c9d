"""Top-k attention (Gupta et al. 2021), computed by blocks of queries.

    S = scale · Q K^T + bias, hidden keys at -inf     t = the k largest scores of a query
    P = softmax(t) at their keys, 0 elsewhere         O = P V

Ties are broken by position, see ``largest``. The softmax and its gradient run over k scores; only the selected keys get
gradients. Without gradients, peak memory is one block of scores.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins.largest import largest

BLOCK = 1 << 22
"""Approximate number of scores per block."""


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, block: int = BLOCK) -> Tensor:
    """Compute attention O (B, H, N, Dv) with ``problem.top_k`` keys per query; see ``reference`` for the shapes.

    Not for ``problem.values``. ``block``: approximate number of scores per block of queries.
    """
    rows = max(1, block // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
    parts = [slice(first, min(first + rows, q.shape[2])) for first in range(0, q.shape[2], rows)]
    outs = [_block(q[:, :, part], k, v, problem.part(part, slice(None))) for part in parts]
    return torch.cat(outs, 2) if outs else q.new_zeros(*q.shape[:3], v.shape[-1])


def _block(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    scores = problem.capped(_product(q * problem.scale, k.transpose(-1, -2)))
    bias = problem.bias()
    if bias is not None:
        scores = scores + bias
    visible = problem.sites.visible(problem.mask, q.shape[1])
    scores = scores.masked_fill(~visible, -torch.inf)
    places = largest(scores, min(problem.top_k or k.shape[2], k.shape[2]), problem.sites.key)
    blind = ~visible.any(-1, keepdim=True)
    p = scores.gather(-1, places).masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    p = F.dropout(p, problem.dropout).to(q.dtype)
    return _product(p.new_zeros(scores.shape).scatter(-1, places, p), v)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a (B, H, N, I) by b (B, G, I, J) with one product per group of heads -> (B, H, N, J)."""
    heads, groups = a.shape[1], b.shape[1]
    joined = a.unflatten(1, (groups, heads // groups)).flatten(2, 3) @ b
    return joined.unflatten(2, (heads // groups, a.shape[2])).flatten(1, 2)
