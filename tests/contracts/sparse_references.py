"""Attention that leaves most pairs out a second time, as loops over single positions."""

from __future__ import annotations

import math
from typing import Any

import torch
from tests.contracts.references import affine, reference
from torch import Tensor


@reference("global_local_attention")
def global_local_attention(m: Any, x: Tensor) -> Tensor:
    part, dk = m.spec, m.spec.head_width(x.shape[-1])
    size, count = part.num_heads * dk, x.shape[1]
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        near, far = [affine(m.qkv, v).split(size) for v in x[b]], [affine(m.global_key_value, v).split(size) for v in x[b]]
        for i in range(count):
            everywhere = i < part.num_global
            seen = [j for j in range(count) if everywhere or abs(i - j) <= part.window or j < part.num_global]
            q = affine(m.global_query, x[b, i]) if everywhere else near[i][0]
            k, v = ([pair[n] for pair in far] if everywhere else [triple[n + 1] for triple in near] for n in (0, 1))
            mixed = []
            for h in range(part.num_heads):
                cut = slice(h * dk, (h + 1) * dk)
                scores = [float(q[cut] @ k[j][cut]) / math.sqrt(dk) for j in seen]
                raw = [math.exp(s - max(scores)) for s in scores]
                mixed.append(sum(r / sum(raw) * v[j][cut] for r, j in zip(raw, seen, strict=True)))
            out[b, i] = affine(m.output, torch.cat(mixed))
    return out
