"""Mixers of graphs a second time, as loops over nodes, for graphs in which every two nodes are neighbours."""

from __future__ import annotations

import math
from typing import Any

import torch
from tests.contracts.references import affine, reference
from torch import Tensor


@reference("propagation")
def propagation(m: Any, x: Tensor) -> Tensor:
    """All degrees are n with the self-loop, so each entry of Â is 1 / n."""
    out = torch.zeros_like(x)
    for b, row in enumerate(x):
        found = row
        for t in range(m.part.steps):
            mean = sum(found) / len(row)
            found = [(1 - m.part.restart) * mean + m.part.restart * first for first in row]
            if m.part.identity is not None:
                beta = math.log(m.part.identity / (t + 1) + 1)
                mixture = (1 - beta) * torch.eye(len(row[0]), dtype=x.dtype) + beta * m.maps[t].weight
                found = [torch.clamp(mixture @ each, min=0.0) for each in found]
        out[b] = torch.stack([v if m.output is None else affine(m.output, v) for v in found])
    return out


@reference("gin")
def gin(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for b, row in enumerate(x):
        for i, own in enumerate(row):
            around = sum((row[j] for j in range(len(row)) if j != i), torch.zeros_like(own))
            hidden = torch.clamp(affine(m.up, (1 + float(m.eps)) * own + around), min=0.0)
            out[b, i] = affine(m.down, hidden)
    return out


@reference("graph_attention")
def graph_attention(m: Any, x: Tensor) -> Tensor:
    part, (dk, dv) = m.part, m.part.dims(x.shape[-1])
    sizes = (part.num_heads * dk, part.kv_heads * dk, part.kv_heads * dv)
    out = torch.zeros_like(x)
    for b, row in enumerate(x):
        q, k, v = zip(*(affine(m.qkv, node).split(sizes) for node in row), strict=True)
        for i in range(len(row)):
            mixed = []
            for h in range(part.num_heads):
                g = h * part.kv_heads // part.num_heads
                keys = [each[g * dk : (g + 1) * dk] for each in k]
                query = q[i][h * dk : (h + 1) * dk]
                if m.query_norm is not None:
                    query, keys = normed(m.query_norm, query), [normed(m.key_norm, key) for key in keys]
                raw = [math.exp(float(query @ key) / (part.temperature * math.sqrt(dk))) for key in keys]
                mixed.append(sum(r / sum(raw) * each[g * dv : (g + 1) * dv] for r, each in zip(raw, v, strict=True)))
            out[b, i] = affine(m.output, torch.cat(mixed))
    return out


def normed(norm: Any, x: Tensor) -> Tensor:
    centred = x - x.mean()
    return centred / torch.sqrt((centred**2).mean() + 0.1) * norm.weight + norm.bias


@reference("global_attention")
def global_attention(m: Any, x: Tensor) -> Tensor:
    width, heads = x.shape[-1], m.part.num_heads
    size, out = width // heads, torch.zeros_like(x)
    for b, row in enumerate(x):
        n = len(row)
        factor = math.sqrt(n) if m.part.scaled else 1.0
        q, k, v = zip(*(affine(m.qkv, node).split(width) for node in row), strict=True)
        for i in range(n):
            mixed = []
            for h in range(heads):
                cut = slice(h * size, (h + 1) * size)
                root = [math.sqrt(sum(float(each[cut] @ each[cut]) for each in side)) for side in (q, k)]
                weights = [factor**2 * float(q[i][cut] @ key[cut]) / (root[0] * root[1]) / n for key in k]
                above = v[i][cut] + sum(w * each[cut] for w, each in zip(weights, v, strict=True))
                mixed.append(above / (1 + sum(weights)))
            out[b, i] = affine(m.output, torch.cat(mixed))
    return out
