"""Window attention: for each block of queries, the fused kernel on its band of keys and the sinks.

Cost and memory are linear in N: for a window of W and query blocks of C, N / C products of C × (C + W + sinks).
The fused kernel has no soft cap; scores with one use plain products.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.attention import products, sdpa
from qkv.ops.attention.blockwise import blocks
from qkv.ops.attention.problem import AttentionProblem
from qkv.ops.masks import SharedSites
from qkv.ops.slices import slices

BLOCK = 256


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, block: int = BLOCK) -> Tensor:
    """Attention output O (B, H, N, Dv) for aligned sites; shapes as in ``reference``. ``block``: queries at once."""
    of_band = sdpa.attention if problem.softcap is None else products.attention
    bands = _bands(problem, q.shape[2], k.shape[2], block)
    each = [band for found in bands.values() for band in found]
    keys, values = iter(slices(k, each)), iter(slices(v, each))
    outs = []
    for (first, found), queries in zip(bands.items(), q.split(block, 2), strict=True):
        if not found:
            outs.append(q.new_zeros(*queries.shape[:3], v.shape[-1]))
            continue
        part = _beside([problem.part(slice(first, first + queries.shape[2]), band) for band in found])
        near, near_values = (_side_by_side(islice(parts, len(found))) for parts in (keys, values))
        outs.append(of_band(queries, near, near_values, part))
    return torch.cat(outs, 2)


def at_once(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, block: int = BLOCK) -> Tensor:
    """Same as ``attention`` in one call of the kernel: all blocks are rows of a batch, their bands padded to the
    longest. For accelerators, where a call costs more than its products; each key is copied once for each block that
    sees it. Not for added scores or visible keys that are given for each pair.
    """
    batch, num_queries = q.shape[0], q.shape[2]
    count = -(-num_queries // block)
    columns, sites = problem.sites.once(
        ("bands", problem.mask, batch, num_queries, block), lambda: _rows_of_bands(q, k.shape[2], problem, block)
    )

    def banded(x: Tensor) -> Tensor:
        groups = q.shape[1] // x.shape[1]
        rows = x.index_select(2, columns).unflatten(2, (count, -1)).transpose(1, 2).flatten(0, 1)
        return rows if groups == 1 else rows.repeat_interleave(groups, dim=1)

    padded = F.pad(q, (0, 0, 0, count * block - num_queries))
    queries = padded.unflatten(2, (count, block)).transpose(1, 2).flatten(0, 1)
    of_band = sdpa.attention if problem.softcap is None else products.attention
    out = of_band(queries, banded(k), banded(v), replace(problem, sites=sites))
    return out.unflatten(0, (batch, count)).transpose(1, 2).flatten(2, 3)[:, :, :num_queries]


def _rows_of_bands(q: Tensor, num_keys: int, problem: AttentionProblem, block: int) -> tuple[Tensor, SharedSites]:
    """(columns of keys of all bands, one after the other; sites whose rows are the blocks of each row)."""
    batch, num_queries, sites = q.shape[0], q.shape[2], problem.sites
    seen = [
        [i for part in band for i in range(part.start, part.stop)]
        for band in _bands(problem, num_queries, num_keys, block).values()
    ]
    longest = max(1, *map(len, seen))
    columns = torch.tensor([band + [-1] * (longest - len(band)) for band in seen], device=q.device)
    places = torch.arange(len(seen) * block, device=q.device).clamp(max=num_queries - 1).view(len(seen), block)
    held = columns.clamp(min=0)

    def of_rows(x: Tensor | None, index: Tensor) -> Tensor | None:
        return None if x is None else x[:, index].expand(batch, -1, -1).flatten(0, 1)

    key = torch.where(columns < 0, -1, sites.key[:, held]).expand(batch, -1, -1).flatten(0, 1)
    query = of_rows(sites.query, places)
    assert query is not None
    prefix = None if sites.prefix is None else sites.prefix.expand(batch).repeat_interleave(len(seen))
    segments = of_rows(sites.query_segment, places), of_rows(sites.key_segment, held)
    return held.flatten(), SharedSites(query, key, *segments, prefix=prefix)


def _bands(problem: AttentionProblem, num_queries: int, num_keys: int, block: int) -> dict[int, list[slice]]:
    """Slices of keys, in ascending order, that each block of queries may see, by the block's first query."""
    seen: dict[int, list[slice]] = {}
    for queries, keys, _ in blocks(problem, num_queries, num_keys, block):
        seen.setdefault(queries.start, []).append(keys)
    return {first: _joined(seen.get(first, [])) for first in range(0, num_queries, block)}


def _side_by_side(parts: Iterable[Tensor]) -> Tensor:
    first, *rest = parts
    return torch.cat([first, *rest], 2) if rest else first


def _beside(parts: list[AttentionProblem]) -> AttentionProblem:
    """Merge attention problems with the same queries to one whose keys are those of all, side by side."""
    first = parts[0]
    added = None if first.added is None else torch.cat([part.added for part in parts if part.added is not None], 3)
    return replace(first, sites=replace(first.sites, key=torch.cat([part.sites.key for part in parts], 1)), added=added)


def _joined(parts: list[slice]) -> list[slice]:
    """Merge slices that are adjacent, in ascending order."""
    joined: list[slice] = []
    for part in parts:
        if joined and joined[-1].stop == part.start:
            joined[-1] = slice(joined[-1].start, part.stop)
        else:
            joined.append(part)
    return joined
