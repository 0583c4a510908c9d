"""Gated attention units a second time, as loops over single positions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from tests.contracts.matrix_references import silu
from tests.contracts.references import affine, reference, turned
from torch import Tensor

from qkv.spec.parts import Rope


def gate_value_and_maps(m: Any, row: Tensor) -> tuple[list[Tensor], list[Tensor], list[list[Tensor]]]:
    """u and v of each position, and of each position all queries and keys."""
    part, hidden = m.spec, m.spec.hidden_at(row.shape[1])
    gates, values, maps = [], [], []
    for i, x in enumerate(row):
        u, v, z = silu(affine(m.gated.input, x)).split((hidden, hidden, part.key_dim))
        own = [z * scale + offset for scale, offset in zip(m.gated.scale, m.gated.offset, strict=True)]
        gates.append(u)
        values.append(v)
        maps.append(own if part.base is None else [turned(each, i, Rope(base=part.base)) for each in own])
    return gates, values, maps


def mean(weights: Iterable[float], values: list[Tensor], like: Tensor) -> Tensor:
    weighted = [w * v for w, v in zip(weights, values, strict=True)]
    return sum(weighted, torch.zeros_like(like)) / max(1, len(weighted))


@reference("gau")
def gau(m: Any, x: Tensor) -> Tensor:
    out, root = torch.zeros_like(x), math.sqrt(m.spec.key_dim)
    for b in range(x.shape[0]):
        gates, values, maps = gate_value_and_maps(m, x[b])
        for i in range(x.shape[1]):
            seen = range(i + 1) if m.spec.mask == "causal" else range(x.shape[1])
            scores = [float(maps[i][0] @ maps[j][1]) / root for j in seen]
            read = mean([max(0.0, s) ** 2 for s in scores], [values[j] for j in seen], values[0])
            out[b, i] = affine(m.output, gates[i] * read)
    return out


@reference("mixed_chunk_attention")
def mixed_chunk_attention(m: Any, x: Tensor) -> Tensor:
    out, root, size, count = torch.zeros_like(x), math.sqrt(m.spec.key_dim), m.spec.chunk, x.shape[1]
    causal = m.spec.mask == "causal"
    for b in range(x.shape[0]):
        gates, values, maps = gate_value_and_maps(m, x[b])
        for i in range(count):
            near = [j for j in range(count) if j // size == i // size and (j <= i or not causal)]
            far = [j for j in range(count) if j // size < i // size or not causal]
            squares = [max(0.0, float(maps[i][0] @ maps[j][1]) / root) ** 2 for j in near]
            read = mean(squares, [values[j] for j in near], values[0])
            linear = [float(maps[i][2] @ maps[j][3]) / root for j in far]
            read = read + mean(linear, [values[j] for j in far], values[0])
            out[b, i] = affine(m.output, gates[i] * read)
    return out
