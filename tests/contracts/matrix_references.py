"""Mixers whose state is a matrix per head, as loops over single positions."""

from __future__ import annotations

import math
from typing import Any

import torch
from tests.contracts.references import activated, affine, normed, reference, turned
from torch import Tensor

from qkv.spec.mixers.linear_attention import Elu
from qkv.spec.parts import Rope


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def convolved(convolution: Any, rows: list[Tensor], i: int) -> Tensor:
    """silu(Σ_t w_t ⊙ x_{i-t} + b) of one position."""
    taps = [convolution.weight[:, t] * rows[i - t] for t in range(convolution.weight.shape[1]) if i >= t]
    return silu(sum(taps) if convolution.bias is None else sum(taps, convolution.bias))


def unit(x: Tensor, eps: float) -> Tensor:
    return x / math.sqrt(float(x @ x) + eps)


def root_mean_square(x: Tensor, eps: float) -> Tensor:
    return x / math.sqrt(float((x * x).mean()) + eps)


def phi(m: Any, h: int, x: Tensor) -> Tensor:
    """elu(x) + 1, e^x below 0 and x + 1 above; or positive random features of head h."""
    if isinstance(m.spec.features, Elu):
        return torch.tensor([math.exp(v) if v < 0 else v + 1 for v in x.tolist()], dtype=x.dtype)
    small = x / len(x) ** 0.25
    features = [math.exp(float(w @ small - small @ small / 2)) for w in m.features.directions[h]]
    return torch.tensor(features, dtype=x.dtype) / math.sqrt(len(features))


@reference("linear_attention")
def linear_attention(m: Any, x: Tensor) -> Tensor:
    heads, width, count = m.spec.num_heads, x.shape[-1], x.shape[1]
    d = width // heads
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        rows = [affine(m.qkv, v) for v in x[b]]
        for i in range(count):
            mixed = []
            for h in range(heads):
                pick = [slice(part * width + h * d, part * width + (h + 1) * d) for part in range(3)]
                q, seen = phi(m, h, rows[i][pick[0]]), range(count if m.spec.mask == "full" else i + 1)
                weights = [float(q @ phi(m, h, rows[j][pick[1]])) for j in seen]
                mixed.append(sum(w * rows[j][pick[2]] for j, w in enumerate(weights)) / sum(weights))
            out[b, i] = affine(m.output, torch.cat(mixed))
    return out


@reference("retention")
def retention(m: Any, x: Tensor) -> Tensor:
    part, (dk, dv) = m.spec, m.spec.dims(x.shape[-1])
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        states = [torch.zeros(dk, dv, dtype=x.dtype) for _ in range(part.num_heads)]
        for i in range(x.shape[1]):
            q, k, v = affine(m.qkv, x[b, i]).split([part.num_heads * each for each in (dk, dk, dv)])
            heads = []
            for h in range(part.num_heads):
                query, key = q[h * dk : (h + 1) * dk], k[h * dk : (h + 1) * dk]
                if part.base is not None:
                    query, key = (turned(each, i, Rope(base=part.base)) for each in (query, key))
                kept = (1 - 2 ** (-5 - h)) * states[h]
                states[h] = kept + torch.outer(key / math.sqrt(dk), v[h * dv : (h + 1) * dv])
                heads.append(root_mean_square(query @ states[h], 1e-6))
            out[b, i] = affine(m.output, torch.cat(heads) * silu(affine(m.gate, x[b, i])))
    return out


@reference("mamba2")
def mamba2(m: Any, x: Tensor) -> Tensor:
    part, inner = m.spec, m.spec.inner(x.shape[-1])
    size, shared, dv = part.state_size, part.state_size * part.num_groups, inner // part.num_heads
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        pieces, factors = [inner, inner, shared, shared, part.num_heads], part.factors or (1.0,) * 5
        scale = torch.cat([torch.full((piece,), f, dtype=x.dtype) for piece, f in zip(pieces, factors, strict=True)])
        split = [inner, inner + 2 * shared, part.num_heads]
        maps = [(scale * affine(m.input, row)).split(split) for row in x[b]]
        states = [torch.zeros(size, dv, dtype=x.dtype) for _ in range(part.num_heads)]
        for i in range(x.shape[1]):
            value, key, query = convolved(m.convolution, [row[1] for row in maps], i).split([inner, shared, shared])
            heads = []
            for h in range(part.num_heads):
                group = h // (part.num_heads // part.num_groups)
                k, q = (each[group * size : (group + 1) * size] for each in (key, query))
                v, step = value[h * dv : (h + 1) * dv], softplus(float(maps[i][2][h] + m.step_bias[h]))
                step = max(step, part.min_step)
                states[h] = math.exp(-math.exp(float(m.log_rate[h])) * step) * states[h] + step * torch.outer(k, v)
                heads.append(q @ states[h] + m.skip[h] * v)
            joined, gate = torch.cat(heads), silu(maps[i][0])
            joined = joined if part.norm == "before_gate" else joined * gate
            if part.norm != "none":
                groups = [root_mean_square(group, part.eps) for group in joined.chunk(part.norm_groups)]
                joined = torch.cat(groups) * m.scale
            out[b, i] = affine(m.output, joined * gate if part.norm == "before_gate" else joined)
    return out


@reference("mamba")
def mamba(m: Any, x: Tensor) -> Tensor:
    part, inner, rank = m.spec, m.spec.inner(x.shape[-1]), m.spec.rank_at(x.shape[-1])
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        maps = [affine(m.input, row).chunk(2) for row in x[b]]
        states = torch.zeros(inner, part.state_size, dtype=x.dtype)
        for i in range(x.shape[1]):
            value = convolved(m.convolution, [row[0] for row in maps], i)
            parts = affine(m.selection, value).split([rank, part.state_size, part.state_size])
            r, key, query = (normed(v, norm, part.norm) for v, norm in zip(parts, m.norms, strict=True))
            raw, mixed = m.step.weight @ r + m.step_bias, []
            for e in range(inner):
                step = softplus(float(raw[e]))
                for s in range(part.state_size):
                    decay = math.exp(-step * math.exp(float(m.log_rate[e, s])))
                    states[e, s] = decay * states[e, s] + step * value[e] * key[s]
                mixed.append(states[e] @ query + m.skip[e] * value[e])
            out[b, i] = affine(m.output, torch.stack(mixed) * silu(maps[i][1]))
    return out


@reference("rg_lru")
def rg_lru(m: Any, x: Tensor) -> Tensor:
    def gate(part: Any, v: Tensor) -> Tensor:
        blocks = zip(v.chunk(len(part.weight)), part.weight, part.bias, strict=True)
        return torch.cat([1 / (1 + torch.exp(-(block @ weight + bias))) for block, weight, bias in blocks])

    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        maps, state = [affine(m.input, row) for row in x[b]], torch.zeros(m.inner, dtype=x.dtype)
        for i in range(x.shape[1]):
            weights = m.convolution.weight
            value = sum(weights[:, t] * maps[i - t] for t in range(weights.shape[1]) if i >= t) + m.convolution.bias
            rates = x.new_tensor([softplus(float(rate)) for rate in m.rate])
            decay = torch.exp(-8 * rates * gate(m.decay_gate, value))
            scale = torch.sqrt(1 - decay * decay) if i else torch.ones_like(decay)
            state = decay * state + scale * gate(m.input_gate, value) * value
            out[b, i] = affine(m.output, state * activated(m.spec.activation, affine(m.gate, x[b, i])))
    return out


@reference("gated_delta")
def gated_delta(m: Any, x: Tensor) -> Tensor:
    part, (dk, dv) = m.spec, m.spec.dims(x.shape[-1])
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        maps = [affine(m.qkv, row) for row in x[b]]
        states = [torch.zeros(dk, dv, dtype=x.dtype) for _ in range(part.num_heads)]
        for i in range(x.shape[1]):
            sizes = [part.key_heads * dk, part.key_heads * dk, part.num_heads * dv]
            q, k, v = convolved(m.convolution, maps, i).split(sizes)
            heads = []
            for h in range(part.num_heads):
                g = h // (part.num_heads // part.key_heads)
                query, key = (unit(each[g * dk : (g + 1) * dk], 1e-6) for each in (q, k))
                value = v[h * dv : (h + 1) * dv]
                strength = part.max_strength * float(torch.sigmoid(affine(m.strength, x[b, i])[h]))
                if part.decay:
                    rate = math.exp(float(m.log_rate[h])) * softplus(
                        float(affine(m.forgetting, x[b, i])[h] + m.step_bias[h])
                    )
                    states[h] = math.exp(-rate) * states[h]
                states[h] = states[h] + strength * torch.outer(key, value - key @ states[h])
                heads.append(root_mean_square(query / math.sqrt(dk) @ states[h], part.eps) * m.scale)
            out[b, i] = affine(m.output, torch.cat(heads) * silu(affine(m.gate, x[b, i])))
    return out
