"""Reference implementation of scaled dot-product attention (Vaswani et al. 2017).

    P = softmax(scale · Q K^T + bias, hidden keys at -inf)        O = P V

``softcap`` c: scaled products s become c · tanh(s / c) (Gemma 2, 2024). ``top_k``: all but the k largest scores of a
query are set to -inf, ties broken by position (Gupta et al. 2021). ``values``: relative position vectors are added to
the values, O_i = Σ_j P_ij (v_j + r_ij) (Shaw et al. 2018). ``sink``: the softmax includes one more score, a logit per
head, whose weight is then discarded (gpt-oss, 2025).

    q (B, H, N, Dk)   k (B, G, M, Dk)   v (B, G, M, Dv)   P (B, H, N, M)   O (B, H, N, Dv)

G divides H: head h uses K/V head h // (H / G) (grouped-query attention, Ainslie et al. 2023). N and M may differ, and
so may Dk and Dv. The output of a query without visible keys is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.attention.problem import AttentionProblem
from qkv.ops.attention.twins.largest import largest


def scores(q: Tensor, k: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute the scores (B, H, N, M) before the softmax, -inf where a key is hidden or not among the top k."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    found = problem.capped(problem.scale * q @ k.transpose(-1, -2))
    bias = problem.bias()
    if bias is not None:
        found = found + bias
    found = found.masked_fill(~problem.sites.visible(problem.mask, q.shape[1]), -torch.inf)
    if problem.chooses(k.shape[2]):
        assert problem.top_k is not None
        left_out = torch.ones_like(found, dtype=torch.bool).scatter(
            -1, largest(found, problem.top_k, problem.sites.key), False
        )
        found = found.masked_fill(left_out, -torch.inf)
    return found


def weights(q: Tensor, k: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute attention weights P (B, H, N, M), before dropout."""
    return normalised(scores(q, k, problem), problem).to(q.dtype)


def normalised(scores: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute attention weights P (B, H, N, M) from scores (B, H, N, M), -inf where a key is hidden."""
    if problem.sink is not None:
        sink = problem.sink.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        return torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    # A row with only -inf would give NaN. It is replaced before the softmax, so that its gradient is 0 too.
    blind = ~problem.sites.visible(problem.mask, scores.shape[1]).any(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute attention O (B, H, N, Dv) for any ``problem``; see the module's docstring for the shapes."""
    return mix(weights(q, k, problem), v, problem)


def mix(weights: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute attention O (B, H, N, Dv) from weights P (B, H, N, M), with dropout."""
    p = F.dropout(weights, problem.dropout)
    out = p @ v.repeat_interleave(p.shape[1] // v.shape[1], dim=1)
    if problem.values is None:
        return out
    index = problem.values.index[:, None].expand(p.shape)
    by_distance = p.new_zeros(*p.shape[:3], problem.values.table.shape[0]).scatter_add(-1, index, p)
    return out + by_distance @ problem.values.table.to(p.dtype)
