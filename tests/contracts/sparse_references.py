"""Attention that leaves most pairs out a second time, as loops over single positions."""

from __future__ import annotations

import math
from typing import Any

import torch
from tests.contracts.references import affine, reference, visible
from torch import Tensor


@reference("global_local_attention")
def global_local_attention(m: Any, x: Tensor) -> Tensor:
    part, dk = m.spec, m.spec.head_width(x.shape[-1])
    size, count = part.num_heads * dk, x.shape[1]
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        near, far = (
            [affine(m.qkv, v).split(size) for v in x[b]],
            [affine(m.global_key_value, v).split(size) for v in x[b]],
        )
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


@reference("lsh_attention")
def lsh_attention(m: Any, x: Tensor) -> Tensor:
    part, dk, count = m.spec, m.spec.head_width(x.shape[-1]), x.shape[1]
    generator = torch.Generator().manual_seed(part.seed)
    turns = torch.randn(part.num_heads, dk, part.num_hashes, sum(part.num_buckets) // 2, generator=generator).double()
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        mixed: list[list[Tensor]] = [[] for _ in range(count)]
        for h in range(part.num_heads):
            cut = slice(h * dk, (h + 1) * dk)
            q, v = ([affine(linear, token)[cut] for token in x[b]] for linear in (m.query_key, m.value))
            k = [vector / math.sqrt(float(vector @ vector) + dk * 1e-6) for vector in q]
            met = [[list(range(count))] for _ in q] if count <= part.chunk_length else met_in_chunks(part, turns[h], q)
            for i in range(count):
                mixed[i].append(joined_rounds(part, i, met[i], [float(q[i] @ key) for key in k], v))
        for i in range(count):
            out[b, i] = affine(m.output, torch.cat(mixed[i]))
    return out


def met_in_chunks(part: Any, turns: Tensor, q: list[Tensor]) -> list[list[list[int]]]:
    """For each position and each round which positions it meets, one that it meets twice listed twice."""
    size, chunks = part.chunk_length, []
    for r in range(part.num_hashes):
        order = sorted(range(len(q)), key=lambda i: (bucket(part.num_buckets, q[i] @ turns[:, r]), i))
        chunks += [order[first : first + size] for first in range(0, len(q), size)]
    met: list[list[list[int]]] = [[] for _ in q]
    for number, chunk in enumerate(chunks):
        around = [chunks[(number + step) % len(chunks)] for step in range(-part.chunks_before, part.chunks_after + 1)]
        for i in chunk:
            met[i].append([j for other in around for j in other])
    return met


def bucket(factors: tuple[int, ...], turned: Tensor) -> int:
    """Digits in a number system of these bases, the first in ones."""
    number, unit, first = 0, 1, 0
    for factor in factors:
        values = [float(t) for t in turned[first : first + factor // 2]]
        number += unit * max(range(factor), key=lambda place: [*values, *(-value for value in values)][place])
        unit, first = unit * factor, first + factor // 2
    return number


def joined_rounds(part: Any, i: int, rounds: list[list[int]], scores: list[float], v: list[Tensor]) -> Tensor:
    """Σ e^s v / Σ e^s over what is met in all rounds, and itself alone where nothing else is visible."""
    seen = [j for met in rounds for j in met if visible(part.mask, i, j)]
    seen = [j for j in seen if j != i] or seen
    raw = [math.exp(scores[j]) for j in seen]
    return sum((r / sum(raw) * v[j] for r, j in zip(raw, seen, strict=True)), torch.zeros_like(v[0]))


@reference("hyper_attention")
def hyper_attention(m: Any, x: Tensor) -> Tensor:
    part, dk, count = m.spec, m.spec.head_width(x.shape[-1]), x.shape[1]
    size, out = part.num_heads * dk, torch.zeros_like(x)
    generator = torch.Generator().manual_seed(part.seed)
    turns = torch.randn(part.num_heads, dk, part.bits, generator=generator).double()
    draws = torch.rand(count, part.num_heads, generator=generator).tolist()
    for b in range(x.shape[0]):
        rows = [affine(m.qkv, token).split(size) for token in x[b]]
        for i in range(count):
            mixed = []
            for h in range(part.num_heads):
                q, k, v = ([row[n][h * dk : (h + 1) * dk] for row in rows] for n in range(3))
                met = keys_met(part, i, q, k, turns[h], [draw[h] for draw in draws])
                raw = [weight * math.exp(float(q[i] @ k[j]) / math.sqrt(dk)) for j, weight in met]
                mixed.append(sum(r / sum(raw) * v[j] for r, (j, _) in zip(raw, met, strict=True)))
            out[b, i] = affine(m.output, torch.cat(mixed))
    return out


def keys_met(
    part: Any, i: int, q: list[Tensor], k: list[Tensor], turns: Tensor, draws: list[float]
) -> list[tuple[int, float]]:
    """Keys that query i reads, with their weights."""
    count, leaf = len(q), part.exact_up_to
    if part.mask == "full":
        everything = range(count)
        return [(j, 1.0) for j in everything] if count <= leaf else blocked(part, i, q, k, turns, draws, everything)
    found = [(j, 1.0) for j in range(i // leaf * leaf, i + 1)]
    size = leaf
    while size <= i:
        if i // size % 2:
            first = i // size * size
            keys, queries = range(first - size, first), range(first, min(first + size, count))
            found += blocked(part, i, q, k, turns, draws, keys, queries)
        size *= 2
    return found


def blocked(
    part: Any,
    i: int,
    q: list[Tensor],
    k: list[Tensor],
    turns: Tensor,
    draws: list[float],
    keys: range,
    queries: range | None = None,
) -> list[tuple[int, float]]:
    """Keys of the block of query i, and those of the sample that are in no such block."""
    orders = [
        sorted(places, key=lambda j: (gray_place(vectors[j] @ turns), j))
        for vectors, places in ((q, queries or keys), (k, keys))
    ]
    number = orders[0].index(i) // part.block
    own = orders[1][number * part.block : (number + 1) * part.block]
    most = min(part.samples, len(keys))
    sample = sorted(keys, key=lambda j: draws[j])[:most]
    return [(j, 1.0) for j in own] + [(j, len(keys) / most) for j in sample if j not in own]


def gray_place(projected: Tensor) -> int:
    """Place of the signs in the list of all codes in which neighbours differ in one sign."""
    codes = [""]
    for _ in projected:
        codes = ["0" + code for code in codes] + ["1" + code for code in reversed(codes)]
    return codes.index("".join("1" if value > 0 else "0" for value in projected.tolist()))
