"""Attention to a window on both sides and to a few global keys: each block of queries meets its band and the global keys only.

    O_i = Σ_{j ∈ S_i} softmax_j(scale · q_i · k_j) v_j        S_i = {j : |p_i - p_j| ≤ window} ∪ {j : j is global}

    q, k (B, H, N, Dk)   v (B, H, N, Dv)   O (B, H, N, Dv)   p positions

For a window of W and blocks of C queries the cost is N / C products of C × (C + 2 W + the number of global keys).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.ops.attention.choose import attention
from qkv.ops.attention.problem import Problem
from qkv.ops.masks import Grid, Mask, Sites


@dataclass(frozen=True)
class Places:
    """Where the N positions stand.

    sites: positions of queries and keys; a key at -1 is padding.   chosen (B or 1, N): which of them are global.
    index (B or 1, g): first the global positions of each row, then others up to the largest number of them.
    consecutive: True if neighbours in a document stand at neighbouring positions, so that a window is a band.
    """

    sites: Sites
    chosen: Tensor
    index: Tensor
    consecutive: bool

    def picked(self) -> Tensor:
        """Which of ``index`` are global, (B or 1, g)."""
        return self.chosen.gather(1, self.index)


@dataclass(frozen=True)
class _Shown(Mask):
    """What is visible, already said: (B or 1, 1, N, M)."""

    table: Tensor

    def allowed(self, grid: Grid) -> Tensor:
        return self.table


def taken(x: Tensor, index: Tensor) -> Tensor:
    """x (B, …, N, D) at index (B or 1, g) of its last axis but one: (B, …, g, D)."""
    index = index.expand(x.shape[0], -1)
    between = (1,) * (x.dim() - 3)
    return x.gather(-2, index.view(x.shape[0], *between, -1, 1).expand(*x.shape[:-2], -1, x.shape[-1]))


def place(chosen: Tensor, count: int, sites: Sites, consecutive: bool) -> Places:
    """The places of a row; ``count``: the largest number of global positions in a row."""
    index = chosen.long().argsort(dim=1, descending=True, stable=True)[:, :count]
    return Places(sites, chosen, index, consecutive)


def windowed(q: Tensor, k: Tensor, v: Tensor, places: Places, window: int, block: int, given: tuple[float, float]) -> Tensor:
    """O (B, H, N, Dv). given: (scale, share of weights that are dropped)."""
    count = q.shape[2]
    # Where neighbours may stand anywhere, every key may be near.
    reach, block = (window, block) if places.consecutive else (count, max(count, 1))
    far_keys, far_values = taken(k, places.index), taken(v, places.index)
    outs = []
    for first in range(0, count, block):
        queries = slice(first, min(first + block, count))
        keys = slice(max(first - reach, 0), min(queries.stop + reach, count))
        shown = torch.cat((_global(places, queries), _near(places, queries, keys, window)), -1)[:, None]
        at = Sites(places.sites.query[:, queries], shown.new_zeros(1, shown.shape[-1], dtype=torch.long))
        problem = Problem(_Shown(shown), at, given[0], dropout=given[1])
        beside, values = (torch.cat((far, near[:, :, keys]), 2) for far, near in ((far_keys, k), (far_values, v)))
        outs.append(attention(q[:, :, queries], beside, values, problem))
    return torch.cat(outs, 2) if outs else torch.zeros_like(v)


def _near(places: Places, queries: slice, keys: slice, window: int) -> Tensor:
    """Which keys of a band are in the window of each query and not global, (B or 1, queries, keys)."""
    part = places.sites.part(queries, keys)
    near = (part.query[:, :, None] - part.key[:, None, :]).abs() <= window
    return _seen(part) & near & ~places.chosen[:, None, keys]


def _global(places: Places, queries: slice) -> Tensor:
    """Which global keys each query sees, (B or 1, queries, g)."""
    sites, index = places.sites, places.index
    rows = max(t.shape[0] for t in (sites.query, sites.key, index, *(t for t in (sites.key_segment, sites.given) if t is not None)))
    index = index.expand(rows, -1)
    keys = sites.key.expand(rows, -1).gather(1, index)
    segments = None if sites.key_segment is None else sites.key_segment.expand(rows, -1).gather(1, index)
    part = sites.part(queries, slice(None))
    given = None if part.given is None else part.given.gather(2, index[:, None].expand(-1, part.given.shape[1], -1))
    return _seen(Sites(part.query, keys, part.query_segment, segments, given=given)) & places.picked()[:, None]


def _seen(sites: Sites) -> Tensor:
    """Which keys are real, of the query's document and not hidden by the caller, (B or 1, N, M)."""
    seen = (sites.key >= 0)[:, None, :].expand(-1, sites.query.shape[1], -1)
    if sites.query_segment is not None and sites.key_segment is not None:
        seen = seen & (sites.query_segment[:, :, None] == sites.key_segment[:, None, :])
    return seen if sites.given is None else seen & sites.given
