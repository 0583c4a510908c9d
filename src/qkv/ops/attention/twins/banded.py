"""Window attention by blocks of queries: torch's fused kernel reads each block's visible keys, sink keys included.

Cost and memory are linear in N: for a window of W and query blocks of C, N / C products of C × (C + W + sinks).
The fused kernel has no soft cap; with a soft cap, ``products`` is used instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins import products, sdpa
from qkv.ops.attention.twins.blockwise import blocks
from qkv.ops.masks import Mask, SharedSites, Sites
from qkv.ops.slices import slices

BLOCK = 256


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, block: int = BLOCK) -> Tensor:
    """Compute attention O (B, H, N, Dv) for aligned sites; shapes as in ``reference``. ``block``: queries per call."""
    of_band = sdpa.attention if problem.softcap is None else products.attention
    by_block = bands(problem.mask, q.shape[2], k.shape[2], block)
    each = [keys for band in by_block for keys in band]
    keys, values = iter(slices(k, each)), iter(slices(v, each))
    outs = []
    for i, (band, queries) in enumerate(zip(by_block, q.split(block, 2), strict=True)):
        if not band:
            outs.append(q.new_zeros(*queries.shape[:3], v.shape[-1]))
            continue
        rows = slice(i * block, i * block + queries.shape[2])
        part = _beside([problem.part(rows, seen) for seen in band])
        near, near_values = (_side_by_side(islice(parts, len(band))) for parts in (keys, values))
        outs.append(of_band(queries, near, near_values, part))
    return torch.cat(outs, 2)


def at_once(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, block: int = BLOCK) -> Tensor:
    """Compute ``attention`` in one kernel call: blocks become batch rows, and bands are padded to the longest band.

    For accelerators, where the overhead of a call exceeds the time of its products. Each key is copied for each block
    that sees it. Not for ``problem.added`` or ``Sites.given``, which have an entry per (query, key) pair.
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
    """Return (key indices of all bands, concatenated; sites with one batch row for each block of each row)."""
    batch, num_queries, sites, device = q.shape[0], q.shape[2], problem.sites, q.device
    by_block = bands(problem.mask, num_queries, num_keys, block)
    parts = range(max(1, *map(len, by_block)))
    columns = torch.cat(
        [_columns([band[i] if i < len(band) else slice(0, 0) for band in by_block], device) for i in parts], 1
    )
    places = torch.arange(len(by_block) * block, device=device).clamp(max=num_queries - 1).view(len(by_block), block)
    indices = columns.clamp(min=0)

    def of_rows(x: Tensor | None, index: Tensor) -> Tensor | None:
        return None if x is None else x[:, index].expand(batch, -1, -1).flatten(0, 1)

    key = torch.where(columns < 0, -1, sites.key[:, indices]).expand(batch, -1, -1).flatten(0, 1)
    query = of_rows(sites.query, places)
    assert query is not None
    prefix = None if sites.prefix is None else sites.prefix.expand(batch).repeat_interleave(len(by_block))
    segments = of_rows(sites.query_segment, places), of_rows(sites.key_segment, indices)
    return indices.flatten(), SharedSites(query, key, *segments, prefix=prefix)


def _columns(parts: list[slice], device: torch.device) -> Tensor:
    """Return the key indices of one slice per block, (blocks, longest slice), padded with -1."""
    first, stop = (torch.tensor([getattr(part, end) for part in parts], device=device) for end in ("start", "stop"))
    columns = first[:, None] + torch.arange(max(part.stop - part.start for part in parts), device=device)
    return columns.where(columns < stop[:, None], -1)


def bands(mask: Mask, num_queries: int, num_keys: int, block: int = BLOCK) -> list[list[slice]]:
    """Return for each block of queries the slices of keys that it may see, in ascending order, for aligned sites.

    The result is cached by mask and sizes, because the search over 16,384 positions takes 3 ms.
    """
    find = _find_bands.__wrapped__ if torch.compiler.is_compiling() else _find_bands
    return find(mask, num_queries, num_keys, block)


@lru_cache(maxsize=256)
def _find_bands(mask: Mask, num_queries: int, num_keys: int, block: int) -> list[list[slice]]:
    positions = torch.empty(1, 0, dtype=torch.long)
    problem = AttentionProblem(mask, Sites(positions, positions, aligned=True), 1.0)
    seen: dict[int, list[slice]] = {first: [] for first in range(0, num_queries, block)}
    for queries, keys, _ in blocks(problem, num_queries, num_keys, block):
        seen[queries.start].append(keys)
    return [_joined(keys) for keys in seen.values()]


def _side_by_side(parts: Iterable[Tensor]) -> Tensor:
    first, *rest = parts
    return torch.cat([first, *rest], 2) if rest else first


def _beside(parts: list[AttentionProblem]) -> AttentionProblem:
    """Merge attention problems with the same queries into one problem with their keys concatenated."""
    first = parts[0]
    added = None if first.added is None else torch.cat([part.added for part in parts if part.added is not None], 3)
    return replace(first, sites=replace(first.sites, key=torch.cat([part.sites.key for part in parts], 1)), added=added)


def _joined(parts: list[slice]) -> list[slice]:
    """Merge adjacent slices; ``parts`` are in ascending order."""
    joined: list[slice] = []
    for part in parts:
        if joined and joined[-1].stop == part.start:
            joined[-1] = slice(joined[-1].start, part.stop)
        else:
            joined.append(part)
    return joined
