"""Attention whose scores meet vectors of the distance a second time, as loops over single positions."""

from __future__ import annotations

import math
from typing import Any

import torch
from tests.contracts.references import affine, normed, reference, visible
from torch import Tensor


def mapped(m: Any, v: Tensor) -> Tensor:
    """Queries, keys and values of one vector; biases of the first and the last may stand beside the map."""
    found = affine(m.qkv, v)
    if getattr(m, "query_bias", None) is not None:
        found = found + torch.cat((m.query_bias, torch.zeros(m.sizes[1]).to(v), m.value_bias))
    return found


class Heads:
    """The projections of one row, cut into heads by hand."""

    def __init__(self, m: Any, row: Tensor):
        self.m, self.part, (self.dk, self.dv) = m, m.spec, m.spec.dims(row.shape[-1])
        self.rows = [mapped(m, v) for v in row]

    def shared(self, h: int) -> int:
        """The K/V head that query head ``h`` reads."""
        return h * self.part.kv_heads // self.part.num_heads

    def query(self, i: int, h: int) -> Tensor:
        return normed(self.rows[i][h * self.dk : (h + 1) * self.dk], self.m.query_norm, self.part.qk_norm)

    def key(self, j: int, h: int) -> Tensor:
        first = (self.part.num_heads + self.shared(h)) * self.dk
        return normed(self.rows[j][first : first + self.dk], self.m.key_norm, self.part.qk_norm)

    def value(self, j: int, h: int) -> Tensor:
        first = (self.part.num_heads + self.part.kv_heads) * self.dk + self.shared(h) * self.dv
        return self.rows[j][first : first + self.dv]


def mixed(m: Any, x: Tensor, score: Any) -> Tensor:
    """softmax over the visible keys of ``score(heads, i, j, h)``, times the values, through the output map."""
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        heads = Heads(m, x[b])
        for i in range(x.shape[1]):
            seen = [j for j in range(x.shape[1]) if visible(m.spec.mask, i, j)]
            parts = []
            for h in range(m.spec.num_heads):
                scores = [score(heads, i, j, h) for j in seen]
                raw = [math.exp(s - max(scores)) for s in scores]
                parts.append(sum(r / sum(raw) * heads.value(j, h) for r, j in zip(raw, seen, strict=True)))
            out[b, i] = affine(m.output, torch.cat(parts))
    return out


def bucket(distance: int, buckets: int | None, furthest: int) -> int:
    """By the sentence in the spec: itself up to the middle, then logarithmic."""
    middle, d = (buckets or 0) // 2, abs(distance)
    if buckets is None or d <= middle:
        return distance
    # The package computes logarithms in float32; a hair's breadth keeps exact borders on their side.
    share = math.log(d / middle) / math.log((furthest - 1) / middle) * (middle - 1)
    return (middle + math.ceil(share - 1e-6)) * (1 if distance > 0 else -1)


@reference("disentangled_attention")
def disentangled_attention(m: Any, x: Tensor) -> Tensor:
    part, (dk, _) = m.spec, m.spec.dims(x.shape[-1])
    span = part.position_buckets or part.max_distance
    rows = [layer_normed(v, m.relative.norm) for v in m.relative.table]
    terms = 1 + part.content_to_position + part.position_to_content

    def of_distance(heads: Heads, d: int, h: int, keys: bool) -> Tensor:
        """a_d or b_d of a head."""
        at = heads.shared(h) if keys else h
        if part.share_projections:
            first = (part.num_heads if keys else 0) * dk + at * dk
            return mapped(m, rows[d])[first : first + dk]
        return affine(m.position_key if keys else m.position_query, rows[d])[at * dk : (at + 1) * dk]

    def score(heads: Heads, i: int, j: int, h: int) -> float:
        d = max(0, min(bucket(i - j, part.position_buckets, part.max_distance) + span, 2 * span - 1))
        dot = float(heads.query(i, h) @ heads.key(j, h))
        if part.content_to_position:
            dot += float(heads.query(i, h) @ of_distance(heads, d, h, True))
        if part.position_to_content:
            dot += float(heads.key(j, h) @ of_distance(heads, d, h, False))
        return dot / (part.temperature * math.sqrt(terms * dk))

    return mixed(m, x, score)


def layer_normed(v: Tensor, norm: Any) -> Tensor:
    if not hasattr(norm, "weight"):
        return v
    away = v - v.mean()
    return away / math.sqrt(float((away * away).mean()) + norm.eps) * norm.weight + norm.bias


@reference("relative_attention")
def relative_attention(m: Any, x: Tensor) -> Tensor:
    part, width, (dk, _) = m.spec, x.shape[-1], m.spec.dims(x.shape[-1])
    u, v = m.content_bias, m.position_bias

    def sinusoid(d: int) -> Tensor:
        """Sines of all frequencies, then their cosines."""
        angles = [d * 10000.0 ** (-2 * f / width) for f in range(width // 2)]
        return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)

    def score(heads: Heads, i: int, j: int, h: int) -> float:
        reach = part.max_distance or x.shape[1]
        mapped = affine(m.position, sinusoid(max(-reach, min(i - j, reach))))
        cut = slice(h * dk, (h + 1) * dk)
        q = heads.query(i, h)
        dot = float((q + u[cut]) @ heads.key(j, h) + (q + v[cut]) @ mapped[cut])
        if part.by_type:
            dot += float((q + m.types.bias[cut]) @ m.types.vectors[0, cut])
        return dot / (part.temperature * math.sqrt(dk))

    return mixed(m, x, score)


@reference("gated_bias_attention")
def gated_bias_attention(m: Any, x: Tensor) -> Tensor:
    part, size = m.spec, x.shape[-1] // m.spec.num_heads

    def gate(v: Tensor, h: int) -> float:
        raw = affine(m.gate, v[h * size : (h + 1) * size])
        a, r = (1 / (1 + math.exp(-float(raw[first : first + 4].sum()))) for first in (0, 4))
        return a * (r * float(m.factor[h]) - 1) + 2

    def bias(distance: int, h: int) -> float:
        count = part.num_buckets if part.causal else part.num_buckets // 2
        first = count if distance > 0 and not part.causal else 0
        away, exact = max(-distance, 0) if part.causal else abs(distance), count // 2
        if away >= exact:
            away = exact + int(math.log(away / exact) / math.log(part.max_distance / exact) * (count - exact) + 1e-6)
        return float(m.buckets.table[first + min(away, count - 1), h])

    def of_row(row: Tensor) -> Tensor:
        def score(heads: Heads, i: int, j: int, h: int) -> float:
            content = float(heads.query(i, h) @ heads.key(j, h)) / (part.temperature * math.sqrt(heads.dk))
            return content + gate(row[i], h) * bias(j - i, h)

        return mixed(m, row[None], score)[0]

    return torch.stack([of_row(row) for row in x])
