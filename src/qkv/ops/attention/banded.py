"""Window attention: for each block of queries, the fused kernel on its band of keys and the sinks.

Cost and memory are linear in N: for a window of W and query blocks of C, N / C products of C × (C + W + sinks).
The fused kernel has no soft cap; scores with one use plain products.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from qkv.ops.attention import products, sdpa
from qkv.ops.attention.blockwise import blocks
from qkv.ops.attention.problem import AttentionProblem

BLOCK = 256


def attention(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, block: int = BLOCK) -> Tensor:
    """Attention output O (B, H, N, Dv) for aligned sites; shapes as in ``reference``. ``block``: queries at once."""
    of_band = sdpa.attention if problem.softcap is None else products.attention
    seen: dict[int, list[slice]] = {}
    for queries, keys, _ in blocks(problem, q.shape[2], k.shape[2], block):
        seen.setdefault(queries.start, []).append(keys)
    outs = []
    for first in range(0, q.shape[2], block):
        queries = slice(first, min(first + block, q.shape[2]))
        bands = _joined(seen.get(first, []))
        if not bands:
            outs.append(q.new_zeros(*q.shape[:2], queries.stop - queries.start, v.shape[-1]))
            continue
        part = _beside([problem.part(queries, band) for band in bands])
        keys, values = (
            torch.cat([t[:, :, band] for band in bands], 2) if len(bands) > 1 else t[:, :, bands[0]] for t in (k, v)
        )
        outs.append(of_band(q[:, :, queries], keys, values, part))
    return torch.cat(outs, 2)


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
