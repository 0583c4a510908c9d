"""Samples for the battery of attention with a continuous memory, and its equation as loops."""

from __future__ import annotations

import math
from typing import Any

import torch
from tests.contracts.references import affine, normed, reference, turned
from tests.contracts.retrieval_samples import averaged
from torch import Tensor

from qkv.spec.branches import Branch
from qkv.spec.mixers.continuous_memory import ContinuousMemory
from qkv.spec.parts import RMSNorm, Rope

CONTINUOUS_SAMPLES: dict[str, tuple[Branch, ...]] = {
    "continuous_memory": (
        ContinuousMemory(segment=3, num_basis=4),
        ContinuousMemory(
            segment=2,
            window=5,
            num_basis=5,
            num_samples=3,
            basis_width=1.5,
            contraction=0.6,
            ridge=0.01,
            num_heads=2,
            num_kv_heads=1,
            head_dim=5,
            value_dim=3,
            temperature=0.5,
            qk_norm=RMSNorm(),
            base=None,
            bias=False,
        ),
        ContinuousMemory(segment=1, num_basis=1, num_samples=1, num_kv_heads=2),
    ),
}


def basis(part: ContinuousMemory, t: float) -> Tensor:
    """ψ(t)."""
    width, centres = part.basis_width / part.num_basis, [(j + 0.5) / part.num_basis for j in range(part.num_basis)]
    return torch.tensor([math.exp(-((t - c) ** 2) / (2 * width**2)) for c in centres], dtype=torch.float64)


def regression(part: ContinuousMemory, times: list[float], vectors: list[Tensor]) -> Tensor:
    """B (N_b, D) of vectors at times, by the normal equations."""
    f = torch.stack([basis(part, t) for t in times], 1)
    gram = f @ f.T + part.ridge * torch.eye(part.num_basis, dtype=torch.float64)
    return torch.linalg.solve(gram, f @ torch.stack(vectors))


def coefficients(part: ContinuousMemory, row: Tensor, segments: int) -> Tensor:
    """B after so many segments of the row x (N, D) itself."""
    size, tau, count = part.segment, part.contraction, part.samples
    own = [(i + 0.5) / size for i in range(size)]
    b = regression(part, own, list(row[:size]))
    for s in range(1, segments):
        old = [(m + 0.5) / count for m in range(count)]
        times = [tau * t for t in old] + [tau + (1 - tau) * t for t in own]
        b = regression(part, times, [basis(part, t) @ b for t in old] + list(row[s * size : (s + 1) * size]))
    return b


def expectation(part: ContinuousMemory, location: float, variance: float) -> Tensor:
    """E[ψ(t)] under N(location, variance): ψ_j is a Gaussian density times √2π s."""
    width, found = part.basis_width / part.num_basis, []
    for j in range(part.num_basis):
        total = variance + width**2
        away = location - (j + 0.5) / part.num_basis
        density = math.exp(-(away**2) / (2 * total)) / math.sqrt(2 * math.pi * total)
        found.append(math.sqrt(2 * math.pi) * width * density)
    return torch.tensor(found, dtype=torch.float64)


@reference("continuous_memory")
def continuous_memory(m: Any, x: Tensor) -> Tensor:
    part, (dk, dv) = m.spec, m.spec.dims(x.shape[-1])
    heads, groups = part.num_heads, part.kv_heads
    maps = m.memory.weight.view(groups, dk + dv, -1)
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        rows = [affine(m.qkv, v).split((heads * dk, groups * dk, groups * dv)) for v in x[b]]
        memories = [coefficients(part, x[b], s) if s else None for s in range(-(-x.shape[1] // part.segment))]
        for i in range(x.shape[1]):
            seen, memory = range(max(0, i - part.reach + 1), i + 1), memories[i // part.segment]
            mixed = []
            for h in range(heads):
                g = h * groups // heads
                q = normed(rows[i][0][h * dk : (h + 1) * dk], m.query_norm, part.qk_norm)
                keys = [normed(rows[j][1][g * dk : (g + 1) * dk], m.key_norm, part.qk_norm) for j in seen]
                values = [rows[j][2][g * dv : (g + 1) * dv] for j in seen]
                scale = 1 / (part.temperature * math.sqrt(dk))
                turn = (lambda v, p: v) if part.base is None else (lambda v, p: turned(v, p, Rope(base=part.base)))
                scores = [scale * float(turn(q, i) @ turn(k, j)) for k, j in zip(keys, seen, strict=True)]
                context = averaged(scores, values, list(range(len(seen))))
                if memory is not None:
                    z = scale * (memory @ maps[g, :dk].T @ q)
                    low, high = (float(w @ z + c) for w, c in zip(m.density[h], m.density_bias[h], strict=True))
                    softplus = max(high, 0.0) + math.log1p(math.exp(-abs(high)))
                    read = expectation(part, (1 + math.tanh(low / 2)) / 2, softplus)
                    context = context + read @ memory @ maps[g, dk:].T
                mixed.append(context)
            out[b, i] = affine(m.output, torch.cat(mixed))
    return out
