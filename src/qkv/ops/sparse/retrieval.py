"""Exact search for the keys with the largest inner products, by the library faiss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def largest_products(q: Tensor, keys: Tensor, counts: Sequence[int], k: int) -> Tensor:
    """Return the indices (B, H, N, k) of the k largest q · k_j among the first ``counts`` (B) keys, -1 if there are
    fewer.

    q (B, H, N, Dk), keys (B, G, M, Dk), H a multiple of G; query heads of a group are consecutive. Exact up to fp32
    rounding (faiss's flat index), without storing all scores and without gradients. Raises ``ImportError`` without
    faiss.
    """
    import faiss

    rows, heads, count, width = q.shape
    groups, indices = keys.shape[1], torch.full((rows, heads, count, k), -1, dtype=torch.long)
    shared = heads // groups
    queries, stored_keys = (t.detach().to("cpu", torch.float32).contiguous() for t in (q, keys))
    for row, most in enumerate(counts):
        for group in range(groups) if most else ():
            group_heads = slice(group * shared, (group + 1) * shared)
            block = queries[row, group_heads].reshape(-1, width).numpy()
            metric: Any = faiss.METRIC_INNER_PRODUCT
            _, places = faiss.knn(block, stored_keys[row, group, :most].numpy(), min(k, most), metric=metric)
            indices[row, group_heads, :, : min(k, most)] = torch.from_numpy(places).view(shared, count, -1)
    return indices.to(q.device)
