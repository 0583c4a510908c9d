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

from qkv.ops.attention import products, sdpa
from qkv.ops.attention.blockwise import blocks
from qkv.ops.attention.problem import AttentionProblem
from qkv.ops.slices import slices

BLOCK = 256


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, block: int = BLOCK) -> Tensor:
    """Attention output O (B, H, N, Dv) for aligned sites; shapes as in ``reference``. ``block``: queries at once."""
    of_band = sdpa.attention if problem.softcap is None else products.attention
    seen: dict[int, list[slice]] = {}
    for queries, keys, _ in blocks(problem, q.shape[2], k.shape[2], block):
        seen.setdefault(queries.start, []).append(keys)
    bands = {first: _joined(seen.get(first, [])) for first in range(0, q.shape[2], block)}
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
