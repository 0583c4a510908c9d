"""Samples for the battery of attention that searches a memory, and its equation as loops."""

from __future__ import annotations

import math
from typing import Any

import torch
from tests.contracts.references import affine, normed, reference
from torch import Tensor

from qkv.spec.branches import Branch
from qkv.spec.mixers.retrieval_attention import RetrievalAttention
from qkv.spec.parts import RMSNorm

RETRIEVAL_SAMPLES: dict[str, tuple[Branch, ...]] = {
    "retrieval_attention": (
        RetrievalAttention(window=2, num_retrieved=2),
        RetrievalAttention(window=1, num_retrieved=1, num_kv_heads=2, qk_norm=RMSNorm(), temperature=0.5),
        RetrievalAttention(window=3, num_retrieved=100, head_dim=6, value_dim=3, bias=False),
        RetrievalAttention(window=500, num_heads=2),
    ),
}


@reference("retrieval_attention")
def retrieval_attention(m: Any, x: Tensor) -> Tensor:
    part, (dk, dv) = m.spec, m.spec.dims(x.shape[-1])
    heads, groups = part.num_heads, part.kv_heads
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        rows = [affine(m.qkv, v).split((heads * dk, groups * dk, groups * dv)) for v in x[b]]
        for i in range(x.shape[1]):
            mixed = []
            for h in range(heads):
                g = h * groups // heads
                q = normed(rows[i][0][h * dk : (h + 1) * dk], m.query_norm, part.qk_norm)
                keys = [normed(row[1][g * dk : (g + 1) * dk], m.key_norm, part.qk_norm) for row in rows[: i + 1]]
                values = [row[2][g * dv : (g + 1) * dv] for row in rows[: i + 1]]
                scores = [float(q @ k) / (part.temperature * math.sqrt(dk)) for k in keys]
                older = sorted(range(max(0, i - part.window + 1)), key=lambda j: -scores[j])[: part.num_retrieved]
                local = averaged(scores, values, list(range(max(0, i - part.window + 1), i + 1)))
                gate = 1 / (1 + math.exp(-float(m.gate[h])))
                mixed.append(gate * averaged(scores, values, older) + (1 - gate) * local if older else local)
            out[b, i] = affine(m.output, torch.cat(mixed))
    return out


def averaged(scores: list[float], values: list[Tensor], seen: list[int]) -> Tensor:
    """Mean of the values at ``seen``, weighted by the softmax of their scores."""
    raw = [math.exp(scores[j] - max(scores)) for j in seen]
    return torch.stack([r / sum(raw) * values[j] for r, j in zip(raw, seen, strict=True)]).sum(0)
