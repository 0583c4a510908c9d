"""Product keys (Lample et al. 2019): the top k of n² scores from the top k of n scores of each half key.

    s_ij = q₁ · c_i + q₂ · c'_j

Each of the k largest sums has both terms among the k largest terms of their half, since otherwise k sums would be
larger. Therefore only k² sums are compared instead of n².

    q (…, H, d)   keys (H, 2, n, d / 2)   scores, index (…, H, k), with index i n + j
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def largest(q: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return (scores, indices) of the ``k`` largest of n² scores, both (…, H, k), in descending order."""
    count = keys.shape[2]
    each = torch.einsum("...hpd,hpnd->...hpn", q.unflatten(-1, (2, -1)), keys)
    terms, places = each.topk(min(k, count))
    sums = (terms[..., 0, :, None] + terms[..., 1, None, :]).flatten(-2)
    index = (places[..., 0, :, None] * count + places[..., 1, None, :]).flatten(-2)
    scores, best = sums.topk(k)
    return scores, index.gather(-1, best)


def spread(scores: Tensor, index: Tensor, count: int) -> Tensor:
    """Return the weights (…, ``count``) of all slots that ``read`` uses, added over the heads."""
    weights = scores.softmax(-1).flatten(-2)
    return weights.new_zeros(*weights.shape[:-1], count).scatter_add(-1, index.flatten(-2), weights)


def read(scores: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """Compute (…, D): the sum over all heads of ``values`` (n², D) at ``index``, weighted by a softmax per head."""
    weights = scores.softmax(-1).flatten(-2).to(values.dtype)
    rows = index.flatten(-2)
    if rows.numel() == 0 or rows.is_meta:  # the fused kernel supports neither
        return (weights[..., None] * F.embedding(rows, values)).sum(-2)
    flat = F.embedding_bag(rows.flatten(0, -2), values, per_sample_weights=weights.flatten(0, -2), mode="sum")
    return flat.unflatten(0, rows.shape[:-1])
