"""Selection of the top-k scores of each query, with ties broken by the position of the key.

    S = {s_j : s_j > t + ε} ∪ the first of {s_j : |s_j - t| <= ε} by position, with |S| = k

t: k-th largest score; ε: rounding tolerance.

A sort breaks ties by memory order, and rounding makes equal products differ, depending on the rest of the batch.
Without this rule, different keys would be selected when a sequence is split into several calls.
"""

from __future__ import annotations

import torch
from torch import Tensor

EQUAL = {torch.float64: 1e-12, torch.float32: 2e-6}
"""Relative tolerance within which scores count as equal, by dtype; other dtypes use eps / 2."""


@torch.no_grad()
def largest(scores: Tensor, k: int, positions: Tensor) -> Tensor:
    """Return the indices of the k largest scores of each query, (B, H, N, k).

    scores (B, H, N, M), hidden keys at -inf; positions (B or 1, M) of the keys. A query with fewer than k visible keys
    gets indices of hidden keys, too.
    """
    values, places = scores.topk(min(k + 1, scores.shape[-1]))
    if values.shape[-1] == k:
        return places
    least, following = values[..., k - 1], values[..., k]
    slack = _share(scores.dtype) * torch.maximum(least.abs(), values[..., 0].abs())
    # Queries with fewer than k visible keys have no ties to break.
    tied = (following >= least - slack) & least.isfinite()
    places, at = places[..., :k], positions[:, None, None].expand_as(scores)
    if scores.is_meta:  # a meta tensor has no values: assume no ties
        return places
    decoding = scores.shape[2] == 1 and scores.device.type != "cpu"
    if torch.compiler.is_compiling() or decoding:  # data-dependent branches cannot be traced, and wait for the device
        return torch.where(tied[..., None], _by_position(scores, at, least, slack, k), places)
    if bool(tied.any()):
        places = places.masked_scatter(
            tied[..., None], _by_position(scores[tied], at[tied], least[tied], slack[tied], k)
        )
    return places


def _by_position(scores: Tensor, positions: Tensor, least: Tensor, slack: Tensor, k: int) -> Tensor:
    """Return the indices (…, k) of the k largest scores in rows with ties at the k-th score, broken by position.

    least: k-th largest score; slack: rounding tolerance, both (…). Scores >= least - slack are candidates.
    """
    above, near = scores > (least + slack)[..., None], scores >= (least - slack)[..., None]
    order = positions.argsort(dim=-1, stable=True)
    in_order = (near & ~above).gather(-1, order)
    first = in_order & (in_order.cumsum(-1, dtype=torch.int32) <= k - above.sum(-1, keepdim=True))
    chosen = above | torch.zeros_like(above).scatter(-1, order, first)
    return chosen.to(torch.uint8).topk(k, sorted=False).indices


def _share(dtype: torch.dtype) -> float:
    return EQUAL.get(dtype, torch.finfo(dtype).eps / 2)
