"""A whole model a second time: embedding, orders, norms, residuals, head as formulas, one position at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tests.contracts.memory_references import MEMORY_REFERENCES, Memories
from tests.contracts.references import REFERENCES, activated, affine, factor, per_position
from torch import Tensor

from qkv.spec import parts
from qkv.spec.model import Block
from qkv.spec.models.segmentation import Megabyte, RecurrentMemory, Scales


def model(m: Any, ids: Tensor, sources: list[list[int]] | None = None) -> Tensor:
    """Logits (B, N, V) in float64; ``sources``: for each row what an encoder reads."""
    memories = [[] for _ in m.spec.layers] if sources is None else encoded(m, sources)
    x = embedded(m, m.spec, m.spec.width, ids)
    part = m.spec.segmentation
    x = inside(m, m.spec, x, memories) if part is None else SEGMENTED[part.kind](m, part, x)
    logits = per_position(
        x, lambda v: m.spec.head.scale * m.head.weight @ v + (0.0 if m.head.bias is None else m.head.bias)
    )
    cap = m.spec.head.softcap
    return logits if cap is None else cap * (logits / cap).tanh()


def inside(m: Any, spec: Any, x: Tensor, memories: list[Memories]) -> Tensor:
    """Blocks and final norm."""
    if spec.reversible:
        x = torch.cat((x, x), -1)
    for x in through(m, spec, x, memories):  # noqa: B007, B020
        pass
    return normed(m.norm, spec.norm, x)


def recurrent_memory(m: Any, part: RecurrentMemory, x: Tensor) -> Tensor:
    """One row and one segment after the other: memory, positions, memory."""
    rows = []
    for row in x:
        memory, out = list(m.segmentation.vectors.table), list[Tensor]()
        for first in range(0, len(row), part.segment):
            segment = list(row[first : first + part.segment])
            y = inside(m, m.spec, torch.stack([*memory, *segment, *memory])[None], [[] for _ in m.spec.layers])[0]
            out += y[len(memory) : len(memory) + len(segment)]
            memory = list(y[-len(memory) :])
        rows.append(torch.stack(out))
    return torch.stack(rows)


def megabyte(m: Any, part: Megabyte, x: Tensor) -> Tensor:
    """One row and one patch after the other, each with what the blocks over patches have read before it."""
    s, size, rows = m.segmentation, part.size, []
    for row in x:
        patches, out = [s.start.table[0]], list[Tensor]()
        for k in range(len(row) // size + 1):
            if k:
                patches.append(s.join.weight @ torch.cat(list(row[(k - 1) * size : k * size])))
            h = inside(s.patches, part.patches, torch.stack(patches)[None], [[] for _ in part.patches.layers])[0][-1]
            said = (s.split.weight @ h).chunk(size)
            before = [s.first.table[0], *row[k * size : (k + 1) * size - 1]]
            local = torch.stack([value + more for value, more in zip(before, said, strict=False)])
            out += inside(m, m.spec, local[None], [[] for _ in m.spec.layers])[0]
        rows.append(torch.stack(out[1 : len(row) + 1]))
    return torch.stack(rows)


def scales(m: Any, part: Scales, x: Tensor) -> Tensor:
    """One row after the other: each position, then the windows that end with it."""
    rows = []
    for row in x:
        values, fine = list[Tensor](), list[int]()
        for t in range(len(row)):
            fine.append(len(values))
            values.append(row[t])
            for size, level_map in zip(part.factors[1:], m.segmentation.maps, strict=True):
                if (t + 1) % size == 0:
                    window = [row[s] for s in range(t + 1 - size, t + 1)]
                    vector = {"mean": sum(window) / size, "last": window[-1]}.get(part.pool)
                    vector = torch.stack(window).max(0).values if vector is None else vector
                    values.append(level_map.weight @ vector + level_map.bias)
        y = inside(m, m.spec, torch.stack(values)[None], [[] for _ in m.spec.layers])[0]
        rows.append(y[fine])
    return torch.stack(rows)


SEGMENTED: dict[str, Callable[[Any, Any, Tensor], Tensor]] = {
    "recurrent_memory": recurrent_memory,
    "megabyte": megabyte,
    "scales": scales,
}
"""Ways to read a row in segments, by kind."""


def encoded(m: Any, sources: list[list[int]]) -> list[Memories]:
    """For each layer what it reads, one source after the other and so without padding."""
    encoder, spec = m.encoder, m.spec.encoder
    rows = []
    for source in sources:
        x, after = embedded(encoder, spec, m.spec.width, torch.tensor([source])), []
        for x in through(encoder, spec, x, [[]] * len(spec.layers)):  # noqa: B020
            after.append(normed(encoder.norm, spec.norm, x)[0])
        rows.append(after)
    read = range(len(spec.layers)) if spec.memory == "layers" else [-1] * len(m.spec.layers)
    return [[after[i] for after in rows] for i in read]


def through(m: Any, spec: Any, x: Tensor, memories: list[Any]) -> Iterator[Tensor]:
    """What each block gives to the next one, after an average of all that came before."""
    outputs = [x]
    for i, (block, part, memory) in enumerate(zip(m.blocks, spec.layers, memories, strict=True), 1):
        outputs.append(one_block(block, part, x, memory))
        x, average = outputs[i], spec.depth_average
        if average is not None and i % average.period == 0:
            terms = [(i - j) // average.dilation for j in range(i + 1) if (i - j) % average.dilation == 0]
            x = sum(m.depth_average.weights[str(i)][n] * outputs[i - n * average.dilation] for n in terms)
        yield x


def embedded(m: Any, spec: Any, width: int, ids: Tensor) -> Tensor:
    text = spec.frontend
    rows = []
    for row in ids.tolist():
        vectors = []
        for position, token in enumerate(row):
            v = m.frontend.table[token] * text.multiplier * (math.sqrt(width) if text.scale else 1.0)
            if text.norm_first:
                v = normed(m.frontend.norm, text.norm, v[None, None])[0, 0]
            p = position_vector(m, text.positions, position, len(v))
            vectors.append(torch.cat((v, p)) if text.join == "concatenate" else v + p)
        rows.append(torch.stack(vectors))
    return torch.stack(rows)


def position_vector(m: Any, part: parts.Positions, position: int, width: int) -> Tensor:
    if isinstance(part, parts.Learned):
        return m.frontend.positions.table[position]
    if isinstance(part, parts.Axial):
        places = [position // math.prod(part.shape[axis + 1 :]) % size for axis, size in enumerate(part.shape)]
        vectors = [table[place] for table, place in zip(m.frontend.positions.tables, places, strict=True)]
        return torch.cat(vectors) if part.widths else torch.stack(vectors).sum(0)
    values = [0.0] * width
    if isinstance(part, (parts.Sinusoidal, parts.LearnedSinusoidal)):
        half, plain = width // 2, part if isinstance(part, parts.Sinusoidal) else parts.Sinusoidal(base=part.base)
        for i in range(half):
            exponent = i / (half - 1) if plain.closed else 2 * i / width
            angle = (position + plain.offset) / plain.base**exponent
            sine, cosine = (i, half + i) if plain.halves else (2 * i, 2 * i + 1)
            values[sine], values[cosine] = math.sin(angle), math.cos(angle)
    waves = torch.tensor(values, dtype=torch.float64)
    if isinstance(part, parts.LearnedSinusoidal):
        net = m.frontend.positions
        return affine(net.down, activated(part.activation, affine(net.up, waves)))
    return waves


def one_block(block: Any, spec: Block, x: Tensor, memory: Memories) -> Tensor:
    before = x
    for j, (slot, part) in enumerate(zip(block.branches, spec.branches, strict=True)):
        own = spec.norms[j] if spec.norms else spec.norm

        factor = spec.factors[j] if spec.factors else 1.0

        def f(v: Tensor, slot: Any = slot, kind: str = part.kind, factor: float = factor) -> Tensor:
            reads = MEMORY_REFERENCES.get(kind)
            return factor * (reads(slot.body, v, memory) if reads else REFERENCES[kind](slot.body, v))

        match spec.order:
            case "pre":
                x = joined(slot.residual, spec.residual, x, f(normed(slot.norm, own, seen(spec.residual, x))))
            case "post":
                x = normed(slot.norm, own, joined(slot.residual, spec.residual, x, f(x)))
            case "sandwich":
                inner = f(normed(slot.norm, own, seen(spec.residual, x)))
                x = joined(slot.residual, spec.residual, x, normed(slot.norm_after, own, inner))
            case "res_post":
                x = joined(slot.residual, spec.residual, x, normed(slot.norm, own, f(x)))
            case "parallel":
                y = f(normed(slot.norm if spec.norms else block.norm, own, before))
                # Without residual, the sum of all branches.
                first = spec.residual != parts.NoResidual() or j == 0
                x = joined(slot.residual, spec.residual, x, y) if first else x + y
    return x


def seen(part: parts.Residual, x: Tensor) -> Tensor:
    """What a branch reads: of two streams the second."""
    return x[..., x.shape[-1] // 2 :] if isinstance(part, parts.Reversible) else x


def joined(residual: Any, part: parts.Residual, x: Tensor, y: Tensor) -> Tensor:
    match part:
        case parts.Add():
            return x + part.factor * y
        case parts.Scaled():
            return x + residual.weight * y
        case parts.Gated():
            return x + math.tanh(float(residual.gate)) * y
        case parts.Resurrecting():
            p = 1 / (1 + torch.exp(-x))
            return torch.where(p > part.threshold, p * y, 0) + torch.where(1 - p > part.threshold, (1 - p) * x, 0)
        case parts.NoResidual():
            return y
        case parts.Reversible():
            return torch.cat((x[..., y.shape[-1] :], x[..., : y.shape[-1]] + y), -1)
    raise TypeError(f"no formula is known for {part}")


def normed(norm: Any, part: parts.Norm, x: Tensor) -> Tensor:
    def at(v: Tensor) -> Tensor:
        match part:
            case parts.LayerNorm():
                mean = v.sum() / len(v)
                var = ((v - mean) ** 2).sum() / len(v)
                return (v - mean) / (var + part.eps) ** 0.5 * factor(norm, part) + (norm.bias if part.bias else 0)
            case parts.RMSNorm():
                return v / ((v**2).sum() / len(v) + part.eps) ** 0.5 * factor(norm, part)
            case parts.BatchNorm():
                return (v - norm.running_mean) / (norm.running_var + part.eps) ** 0.5 * norm.weight + norm.bias
            case parts.NoNorm():
                return v
        raise TypeError(f"no formula is known for {part}")

    return per_position(x, at)
