"""Mixed chunk attention (FLASH, Hua et al. 2022): quadratic within chunks of C positions, linear across them.

    o_i = 1/m_i Σ_j relu(s q_i · k_j)² v_j        j in the chunk of i, if causal j <= i; m_i: their number
        + 1/l_i Σ_j (s q'_i · k'_j) v_j           j in earlier chunks, or in all if not causal; l_i: their number

q, k, q', k' (B, N, S)   v (B, N, E)   s = 1 / √S
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.at_least_single import at_least_single
from qkv.ops.gated_attention.squared_relu import squared_relu
from qkv.ops.matrix_state.chunks import cut, unseen_scores
from qkv.ops.selection.counting import Unseen, declares


class Maps(NamedTuple):
    """Queries and keys (B, N, S): q, k within a chunk, q', k' across chunks."""

    query: Tensor
    key: Tensor
    far_query: Tensor
    far_key: Tensor


def _scores(maps: Maps, v: Tensor, chunk: int, causal: bool, real: object = None) -> Unseen:
    pair = 2 * v.shape[0] * (maps.query.shape[2] + v.shape[2])
    result = unseen_scores(maps.query[:, None], v[:, None], pair, chunk)
    return result if causal else Unseen(result.stored)


@declares(_scores)
def whole(maps: Maps, v: Tensor, chunk: int, causal: bool, real: Tensor | None = None) -> Tensor:
    """Compute o (B, N, E) of whole rows, without cached keys and values.

    real (B, N): False at padding, where keys and values are 0; None: no padding.
    """
    count = v.shape[1]
    if count == 0:
        return v
    size, scale = min(chunk, count), maps.query.shape[2] ** -0.5
    q, k, far_q, far_k, values = (cut(each[:, None], size)[:, 0] for each in (*maps, v))  # (B, n, C, …)
    near = squared_relu((q * scale) @ k.mT)
    steps = torch.arange(1, size + 1, device=v.device)
    if causal:
        outputs = (near.tril() @ values) / steps[:, None]
        if q.shape[1] == 1:
            return outputs[:, 0]
        sums = at_least_single(far_k.mT @ values).cumsum(1).to(v.dtype)
        before = F.pad(sums[:, :-1], (0, 0, 0, 0, 1, 0))
        number = (torch.arange(q.shape[1], device=v.device) * size).clamp(min=1)[:, None, None]
    else:
        there = torch.ones(1, count, dtype=torch.bool, device=v.device) if real is None else real
        keys_per_chunk = cut(there[:, None], size)[:, 0].sum(-1)  # (B, n)
        outputs = (near @ values) / keys_per_chunk.clamp(min=1)[..., None, None]
        before = at_least_single(far_k.mT @ values).sum(1, keepdim=True).to(v.dtype)
        number = keys_per_chunk.sum(-1).clamp(min=1)[:, None, None, None]
    return (outputs + (far_q * scale) @ before / number).to(v.dtype).flatten(1, 2)[:, :count]


def step(maps: Maps, keys: Maps, v: Tensor, sums: Tensor, slots: Tensor, first: Tensor, chunk: int) -> Tensor:
    """Compute o (B, N, E) of N <= C new positions, from cached keys and values; they may start within a chunk.

    maps: queries and keys of the new positions. keys (B, M, S), v (B, M, E): of the slots of a row's current chunk and
    the next chunk; 0 in empty slots. sums (B, S, E): Σ_j k'_j^T v_j of all earlier chunks. slots (B, N): slot of each
    new position. first (B): number of positions before the current chunk.
    """
    scale, here = maps.query.shape[2] ** -0.5, torch.arange(v.shape[1], device=v.device)
    turn = (slots // chunk)[..., None]
    before = (first[:, None] + slots // chunk * chunk).clamp(min=1)[..., None]
    inside = (here // chunk == turn) & (here <= slots[..., None])
    near = squared_relu((maps.query * scale) @ keys.key.mT).masked_fill(~inside, 0.0) / (slots % chunk + 1)[..., None]
    far = ((maps.far_query * scale) @ keys.far_key.mT).masked_fill(here // chunk >= turn, 0.0) / before
    return (near + far).to(v.dtype) @ v + ((maps.far_query * scale) @ sums / before).to(v.dtype)
