"""Scores of queries or keys with relative position vectors.

q (B, H, N, Dk)   k (B, H, M, Dk)   vectors (H, R, Dk): one per distance or bucket
index (B or 1, N, M): distance of each pair, < R
"""

from __future__ import annotations

import torch
from torch import Tensor


def by_query(q: Tensor, vectors: Tensor, index: Tensor) -> Tensor:
    """Compute the scores q_i · vectors[index_ij] of queries with relative position vectors, (B, H, N, M)."""
    rows, heads, count, width = q.shape
    # One product per head for all rows, so that the vectors are not copied for each row.
    scores = q.transpose(0, 1).reshape(heads, rows * count, width) @ vectors.transpose(-1, -2)
    scores = scores.view(heads, rows, count, vectors.shape[1]).transpose(0, 1)
    return scores.gather(-1, index[:, None].expand(*q.shape[:3], -1))


def by_key(k: Tensor, vectors: Tensor, index: Tensor) -> Tensor:
    """Compute the scores k_j · vectors[index_ij] of keys with relative position vectors, (B, H, N, M)."""
    return by_query(k, vectors, index.transpose(-1, -2)).transpose(-1, -2)


def log_buckets(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """Compute the logarithmic bucket of a signed distance d (DeBERTa-v2, He et al. 2021).

    sign(d) |d| for |d| <= b = num_buckets // 2, else
    sign(d) (b + ⌈(b - 1) log(|d| / b) / log((max_distance - 1) / b)⌉).
    The result is not clipped at ``max_distance``; callers clip it.
    """
    middle = num_buckets // 2
    # In this order and in fp32, so that bucket borders equal those of the published models.
    far = distance.abs().clamp(min=max(middle, 1))
    share = torch.log(far / middle) / torch.log(torch.tensor((max_distance - 1) / middle)) * (middle - 1)
    return torch.where(distance.abs() <= middle, distance, (share.ceil() + middle).long() * distance.sign())
