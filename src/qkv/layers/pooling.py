"""Pooling of a sequence of vectors to one vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def pooled(x: Tensor, lengths: Tensor | None, how: str) -> Tensor:
    """Pool x (B, N, D) -> (B, D) over the first ``lengths`` (B) positions of each row; None for all."""
    if lengths is None:
        lengths = torch.full(x.shape[:1], x.shape[1], device=x.device)
    return pooled_over(x, torch.arange(x.shape[1], device=x.device) < lengths[:, None], how)


def pooled_over(x: Tensor, real: Tensor, how: str) -> Tensor:
    """Pool x (B, N, D) -> (B, D) over the positions where ``real`` (B, N) is True. An empty row gives 0.

    how: one of ``POOLINGS``.
    """
    return POOLINGS[how](x, real).masked_fill(~real.any(1, keepdim=True), 0)


def _last(x: Tensor, real: Tensor) -> Tensor:
    places = torch.arange(real.shape[1], device=x.device)
    return x[torch.arange(x.shape[0], device=x.device), (places * real).argmax(1)]


def _sum(x: Tensor, real: Tensor) -> Tensor:
    return x.masked_fill(~real[..., None], 0).sum(1)


def _count(real: Tensor) -> Tensor:
    return real.sum(1, keepdim=True).clamp(min=1)


def _by_place(x: Tensor, real: Tensor) -> Tensor:
    weights = real * torch.arange(1, real.shape[1] + 1, device=x.device)
    return _sum(x * weights[..., None], real) / weights.sum(1, keepdim=True).clamp(min=1)


def _mean_rest(x: Tensor, real: Tensor) -> Tensor:
    return _sum(x[:, 1:], real[:, 1:]) / _count(real[:, 1:])


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "first": lambda x, real: x[:, 0],
    "last": _last,
    "max": lambda x, real: x.masked_fill(~real[..., None], -torch.inf).max(1).values,
    "mean": lambda x, real: _sum(x, real) / _count(real),
    "mean_rest": _mean_rest,
    "mean_sqrt_len": lambda x, real: _sum(x, real) / _count(real) ** 0.5,
    "weighted_mean": _by_place,
}
"""Poolings by name, over the n unpadded vectors x_i.

first, last: the first or last vector. max: maximum of each feature. mean: Σ x_i / n. mean_rest: mean of all but the
first.
mean_sqrt_len: Σ x_i / √n. weighted_mean: Σ i x_i / Σ i, i = 1, 2, … (Muennighoff 2022).
"""

SENTENCE_NAMES = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
"""Name in ``POOLINGS`` of each pooling of sentence-transformers (Reimers & Gurevych 2019)."""
