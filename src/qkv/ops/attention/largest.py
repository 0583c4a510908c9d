"""The k largest scores of a query, equal ones in the order of their keys' positions.

S = {s_j : s_j > t + ε} ∪ the first of {s_j : |s_j - t| <= ε} by position, k in all;  t the k-th largest score, ε what rounding makes of it

Which of several equal scores a sort returns first depends on where they are stored and on how many there are, and equal products are equal up to
rounding only, which depends on what else is multiplied in the same call. Without a rule, cutting a sequence would change what a query reads.
"""

from __future__ import annotations

import torch
from torch import Tensor

EQUAL = {torch.float64: 1e-12, torch.float32: 2e-6}
"""Scores that differ by less than this share of the larger one are equal; in half precision by half a step, as they are rounded themselves."""


@torch.no_grad()
def largest(scores: Tensor, k: int, positions: Tensor) -> Tensor:
    """Places of k keys of each query, (B, H, N, k). scores (B, H, N, M), hidden keys at -inf; positions (B or 1, M), of the keys.

    Of a query that sees fewer than k, the rest are places of hidden keys.
    """
    found, places = scores.topk(min(k + 1, scores.shape[-1]))
    if found.shape[-1] == k:
        return places
    least, following = found[..., k - 1], found[..., k]
    slack = _share(scores.dtype) * torch.maximum(least.abs(), found[..., 0].abs())
    # A query that sees fewer than k keys has none to leave out.
    tied = (following >= least - slack) & least.isfinite()
    places, at = places[..., :k], positions[:, None, None].expand_as(scores)
    if torch.compiler.is_compiling() or scores.is_meta:  # where data cannot decide
        return torch.where(tied[..., None], _by_position(scores, at, least, slack, k), places)
    if bool(tied.any()):
        places = places.masked_scatter(tied[..., None], _by_position(scores[tied], at[tied], least[tied], slack[tied], k))
    return places


def _by_position(scores: Tensor, positions: Tensor, least: Tensor, slack: Tensor, k: int) -> Tensor:
    """(…, k) for scores and positions (…, M), where more than k scores reach ``least`` (…) less ``slack`` (…)."""
    above, near = scores > (least + slack)[..., None], scores >= (least - slack)[..., None]
    order = positions.argsort(dim=-1, stable=True)
    in_order = (near & ~above).gather(-1, order)
    first = in_order & (in_order.cumsum(-1, dtype=torch.int32) <= k - above.sum(-1, keepdim=True))
    chosen = above | torch.zeros_like(above).scatter(-1, order, first)
    return chosen.to(torch.uint8).topk(k, sorted=False).indices


def _share(dtype: torch.dtype) -> float:
    return EQUAL.get(dtype, torch.finfo(dtype).eps / 2)
