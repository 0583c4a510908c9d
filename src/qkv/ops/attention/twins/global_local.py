"""Symmetric window attention with global keys (Longformer): blocks of queries attend to a band and the global keys.

    O_i = Σ_{j ∈ S_i} softmax_j(scale · q_i · k_j) v_j        S_i = {j : |p_i - p_j| ≤ window} ∪ {j : j is global}

    q, k (B, H, N, Dk)   v (B, H, N, Dv)   O (B, H, N, Dv)   p positions

Cost for a window of W, g global keys and blocks of C queries: N / C products of C × (C + 2 W + g).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Grid, Mask, Sites
from qkv.ops.selection.counting import Unseen, declares
from qkv.ops.slices import slices


@dataclass(frozen=True)
class Places:
    """Positions of N tokens, and the selection of global tokens among them.

    sites: positions of queries and keys; a key at -1 is padding.   chosen (B or 1, N): True for global tokens. index (B
    or 1, g): indices of global tokens; rows with fewer than g global tokens are filled up with other tokens.
    consecutive: True if positions increase by 1 within each document, so that the keys of a window are contiguous.
    """

    sites: Sites
    chosen: Tensor
    index: Tensor
    consecutive: bool

    def picked(self) -> Tensor:
        """Return a mask (B or 1, g): True where ``index`` names a global token, False where it fills up a shorter
        row.
        """
        return self.chosen.gather(1, self.index)


@dataclass(frozen=True)
class _Shown(Mask):
    """Mask stored as a table (B or 1, 1, N, M)."""

    table: Tensor

    def allowed(self, grid: Grid) -> Tensor:
        return self.table


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Gather rows of x (B, …, N, D) at index (B or 1, g): (B, …, g, D)."""
    index = index.expand(x.shape[0], -1)
    between = (1,) * (x.dim() - 3)
    return x.gather(-2, index.view(x.shape[0], *between, -1, 1).expand(*x.shape[:-2], -1, x.shape[-1]))


def place(chosen: Tensor, count: int, sites: Sites, consecutive: bool) -> Places:
    """Build ``Places``. ``chosen`` (B or 1, N): True at global tokens. ``count``: g, their maximum number per row."""
    index = chosen.long().argsort(dim=1, descending=True, stable=True)[:, :count]
    return Places(sites, chosen, index, consecutive)


def _scores(q: Tensor, k: Tensor, v: Tensor, places: Places, window: int, *arguments: object) -> Unseen:
    """Declare the costs of a call: pairs that are computed although neither in a window nor global count as hidden."""
    rows, count, chosen = q.shape[:2].numel(), q.shape[2], places.index.shape[1]
    pair = 2 * rows * (q.shape[3] + v.shape[3])
    near = [min(count, i + window + 1) - max(0, i - window) for i in range(count)]
    visible = sum(near) + sum(count - seen for seen in near[:chosen])
    return Unseen(rows * count * count * q.element_size(), hidden=lambda computed: max(computed - pair * visible, 0))


@declares(_scores)
def windowed(
    q: Tensor, k: Tensor, v: Tensor, places: Places, window: int, block: int, scaling: tuple[float, float]
) -> Tensor:
    """Compute attention O (B, H, N, Dv) to keys within ``window`` positions and to global keys.

    ``block``: number of queries per block; scaling: (scale of the scores, dropout probability).
    """
    count = q.shape[2]
    # If positions are not consecutive, any key may be in the window.
    reach, block = (window, block) if places.consecutive else (count, max(count, 1))
    far_keys, far_values = gather_rows(k, places.index), gather_rows(v, places.index)
    blocks = [slice(first, min(first + block, count)) for first in range(0, count, block)]
    bands = [slice(max(queries.start - reach, 0), min(queries.stop + reach, count)) for queries in blocks]
    outs = []
    for queries, keys, part, near_keys, near_values in zip(
        blocks, bands, slices(q, blocks), slices(k, bands), slices(v, bands), strict=True
    ):
        visible = torch.cat((_global(places, queries), _near(places, queries, keys, window)), -1)[:, None]
        at = Sites(places.sites.query[:, queries], visible.new_zeros(1, visible.shape[-1], dtype=torch.long))
        problem = AttentionProblem(_Shown(visible), at, scaling[0], dropout=scaling[1])
        beside, values = (torch.cat(pair, 2) for pair in ((far_keys, near_keys), (far_values, near_values)))
        outs.append(attention(part, beside, values, problem))
    return torch.cat(outs, 2) if outs else torch.zeros_like(v)


def _near(places: Places, queries: slice, keys: slice, window: int) -> Tensor:
    """Build a mask (B or 1, queries, keys): True for keys within ``window`` of the query that are not global."""
    part = places.sites.part(queries, keys)
    near = (part.query[:, :, None] - part.key[:, None, :]).abs() <= window
    return _seen(part) & near & ~places.chosen[:, None, keys]


def _global(places: Places, queries: slice) -> Tensor:
    """Build a mask (B or 1, queries, g): True for global keys that the query sees."""
    sites, index = places.sites, places.index
    rows = max(
        t.shape[0]
        for t in (sites.query, sites.key, index, *(t for t in (sites.key_segment, sites.given) if t is not None))
    )
    index = index.expand(rows, -1)
    keys = sites.key.expand(rows, -1).gather(1, index)
    segments = None if sites.key_segment is None else sites.key_segment.expand(rows, -1).gather(1, index)
    part = sites.part(queries, slice(None))
    visible = None if part.given is None else part.given.gather(2, index[:, None].expand(-1, part.given.shape[1], -1))
    return _seen(Sites(part.query, keys, part.query_segment, segments, given=visible)) & places.picked()[:, None]


def _seen(sites: Sites) -> Tensor:
    """Build a mask (B or 1, N, M): True for unpadded keys of the query's document that ``sites.given`` allows."""
    seen = (sites.key >= 0)[:, None, :].expand(-1, sites.query.shape[1], -1)
    if sites.query_segment is not None and sites.key_segment is not None:
        seen = seen & (sites.query_segment[:, :, None] == sites.key_segment[:, None, :])
    return seen if sites.given is None else seen & sites.given
