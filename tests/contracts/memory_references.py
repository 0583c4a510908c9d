"""Branches that read a memory a second time, as loops over single positions.

Every function maps the module's own weights, x (B, N, D) and for each row the M real vectors of its memory (M, D) to y
(B, N, D).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tests.contracts.references import affine, normed
from torch import Tensor

Memories = list[Tensor]
MemoryReference = Callable[[Any, Tensor, Memories], Tensor]
MEMORY_REFERENCES: dict[str, MemoryReference] = {}


def reference(
    kind: str,
) -> Callable[[Callable[[Any, Tensor, Tensor], Tensor]], Callable[[Any, Tensor, Tensor], Tensor]]:
    """Registers what one position v (D) reads of its row's memory (M, D)."""

    def register(of_position: Callable[[Any, Tensor, Tensor], Tensor]) -> Callable[[Any, Tensor, Tensor], Tensor]:
        MEMORY_REFERENCES[kind] = lambda m, x, memories: torch.stack(
            [torch.stack([of_position(m, v, memory) for v in row]) for row, memory in zip(x, memories, strict=True)]
        )
        return of_position

    return register


def softmax(scores: list[float]) -> list[float]:
    raw = [math.exp(score - max(scores)) for score in scores]
    return [r / sum(raw) for r in raw]


@reference("cross_attention")
def cross_attention(m: Any, v: Tensor, memory: Tensor) -> Tensor:
    part, (dk, dv) = m.spec, m.spec.dims(len(v))
    heads, groups = part.num_heads, part.kv_heads
    queries, mapped, mixed = affine(m.query, v), [affine(m.memory, slot) for slot in memory], []
    if part.bias and not part.key_bias:
        for row in mapped:
            row[len(row) - len(m.value_bias) :] += m.value_bias
    for h in range(heads):
        g = h * groups // heads
        q = normed(queries[h * dk : (h + 1) * dk], m.query_norm, part.qk_norm)
        keys = [normed(slot[g * dk : (g + 1) * dk], m.key_norm, part.qk_norm) for slot in mapped]
        weights = softmax([float(q @ k) / (part.temperature * math.sqrt(dk)) for k in keys])
        values = [slot[groups * dk + g * dv : groups * dk + (g + 1) * dv] for slot in mapped]
        mixed.append(sum(w * value for w, value in zip(weights, values, strict=True)))
    return affine(m.output, torch.cat(mixed))


@reference("additive_attention")
def additive_attention(m: Any, v: Tensor, memory: Tensor) -> Tensor:
    scores = [float(m.score.weight[0] @ (m.query.weight @ v + m.memory.weight @ slot).tanh()) for slot in memory]
    return affine(m.output, sum(w * slot for w, slot in zip(softmax(scores), memory, strict=True)))


@reference("fixed_context")
def fixed_context(m: Any, v: Tensor, memory: Tensor) -> Tensor:
    columns = memory.t().tolist()
    pools: dict[str, Callable[[list[float]], float]] = {
        "first": lambda column: column[0],
        "last": lambda column: column[-1],
        "mean": lambda column: sum(column) / len(column),
        "max": max,
    }
    return affine(m.output, torch.tensor([pools[m.spec.pooling](column) for column in columns], dtype=v.dtype))
