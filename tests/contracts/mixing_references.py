"""Mixers without scores a second time, as loops over single positions and features."""

from __future__ import annotations

import math
from typing import Any

import torch
from tests.contracts.references import activated, affine, normed, reference
from torch import Tensor


@reference("token_mlp")
def token_mlp(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for feature in range(x.shape[2]):
            sums = m.up.bias.clone()
            for j in range(x.shape[1]):
                sums = sums + m.up.weight[:, j] * x[b, j, feature]
            hidden = activated(m.spec.activation, sums)
            for i in range(x.shape[1]):
                out[b, i, feature] = m.down.bias[i] + sum(m.down.weight[i, k] * h for k, h in enumerate(hidden))
    return out


def seen_by(m: Any, i: int, count: int) -> range:
    return range(i + 1) if m.spec.mask == "causal" else range(count)


@reference("gmlp")
def gmlp(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        hidden = [activated(m.spec.activation, affine(m.up, v)) for v in x[b]]
        half = len(hidden[0]) // 2
        gates = [normed(h[half:], m.norm, m.spec.norm) for h in hidden]
        for i in range(x.shape[1]):
            gate = m.bias[i] + sum(m.weight[i, j] * gates[j] for j in seen_by(m, i, x.shape[1]))
            out[b, i] = affine(m.down, hidden[i][:half] * gate)
    return out


@reference("linformer")
def linformer(m: Any, x: Tensor) -> Tensor:
    part, dk, count = m.spec, m.spec.head_width(x.shape[2]), x.shape[1]
    size, out = part.num_heads * dk, torch.zeros_like(x)
    for b in range(x.shape[0]):
        rows = [affine(m.qkv, v).split(size) for v in x[b]]
        for i in range(count):
            heads = []
            for h in range(part.num_heads):
                cut, first = slice(h * dk, (h + 1) * dk), h * part.rank if part.share == "none" else 0
                e, f = m.key_mixtures, m.key_mixtures if part.share == "keys_values" else m.value_mixtures
                places = range(first, first + part.rank)
                keys = [sum(e[t, j] * rows[j][1][cut] for j in range(count)) for t in places]
                values = [sum(f[t, j] * rows[j][2][cut] for j in range(count)) for t in places]
                raw = [math.exp(float(rows[i][0][cut] @ key) / math.sqrt(dk)) for key in keys]
                heads.append(sum(r / sum(raw) * v for r, v in zip(raw, values, strict=True)))
            out[b, i] = affine(m.output, torch.cat(heads))
    return out


@reference("fourier")
def fourier(m: Any, x: Tensor) -> Tensor:
    out, (count, width) = torch.zeros_like(x), x.shape[1:]
    for b in range(x.shape[0]):
        for i in range(count):
            for c in range(width):
                turns = [(i * j / count + c * d / width, x[b, j, d]) for j in range(count) for d in range(width)]
                out[b, i, c] = sum(value * math.cos(2 * math.pi * turn) for turn, value in turns)
    return out


@reference("random_mixing")
def random_mixing(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in seen_by(m, i, x.shape[1]):
                out[b, i] += m.matrix[i, j] * x[b, j]
    return out


def from_neighbours(row: list[Tensor]) -> list[Tensor]:
    """In a sequence: the first half of the features from the previous position, the others from the next one."""
    first = (len(row[0]) + 1) // 2 if row else 0
    return [torch.cat((row[max(i - 1, 0)][:first], row[min(i + 1, len(row) - 1)][first:])) for i in range(len(row))]


def from_before(row: list[Tensor]) -> list[Tensor]:
    """The first half of the features from the previous position, of which the first has none; the others stay."""
    first = (len(row[0]) + 1) // 2 if row else 0
    return [torch.cat((row[i - 1][:first] if i else 0 * v[:first], v[first:])) for i, v in enumerate(row)]


def shifted(m: Any, row: list[Tensor]) -> list[Tensor]:
    return from_before(row) if m.spec.mask == "causal" else from_neighbours(row)


@reference("spatial_shift")
def spatial_shift(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        hidden = shifted(m, [activated(m.spec.activation, affine(m.up, v)) for v in x[b]])
        for i, h in enumerate(hidden):
            out[b, i] = affine(m.down, h)
    return out


@reference("pooling")
def pooling(m: Any, x: Tensor) -> Tensor:
    out, size, count = torch.zeros_like(x), m.spec.size, x.shape[1]
    for b in range(x.shape[0]):
        for i in range(count):
            near = [j for j in range(i - size // 2, i - size // 2 + size) if j in range(count)]
            out[b, i] = sum(x[b, j] for j in near) / len(near) - x[b, i]
    return out


def convolved(convolution: Any, row: list[Tensor]) -> list[Tensor]:
    """Each feature by itself; where no position is, 0."""
    taps, out = convolution.weight[:, 0], []
    reach = taps.shape[1] // 2
    for i in range(len(row)):
        near = [j for j in range(i - reach, i + reach + 1) if j in range(len(row))]
        bias = 0.0 if convolution.bias is None else convolution.bias
        out.append(bias + sum(taps[:, j - i + reach] * row[j] for j in near))
    return out


@reference("convolved_feed_forward")
def convolved_feed_forward(m: Any, x: Tensor) -> Tensor:
    part, out = m.spec, torch.zeros_like(x)
    for b in range(x.shape[0]):
        row = [*x[b]]
        if part.place == "input":
            row = [normed(v, m.norm, part.norm) for v in convolved(m.convolution, row)]
        hidden = [affine(m.up, v) for v in row]
        if part.place == "hidden":
            hidden = convolved(m.convolution, hidden)
        hidden = [activated(part.activation, h) for h in hidden]
        if part.response_norm and hidden:
            sums = [math.sqrt(float(sum(h[f] ** 2 for h in hidden))) for f in range(len(hidden[0]))]
            share = torch.tensor([s / (sum(sums) / len(sums) + 1e-6) for s in sums], dtype=x.dtype)
            hidden = [m.response * h * share + m.response_bias + h for h in hidden]
        for i, h in enumerate(hidden):
            out[b, i] = affine(m.down, h)
    return out


def gelu(x: Tensor) -> Tensor:
    return activated("gelu", x)


@reference("focal_modulation")
def focal_modulation(m: Any, x: Tensor) -> Tensor:
    width, out = x.shape[2], torch.zeros_like(x)
    for b in range(x.shape[0]):
        rows = [affine(m.input, v) for v in x[b]]
        level, totals = [v[width : 2 * width] for v in rows], [torch.zeros_like(v) for v in x[b]]
        for number, taps in enumerate(m.levels):
            level = [gelu(v) for v in convolved(taps, level)]
            totals = [total + v[2 * width + number] * c for total, v, c in zip(totals, rows, level, strict=True)]
        for i, v in enumerate(rows):
            total = totals[i] + v[-1] * gelu(sum(level) / len(level))
            total = total / (m.spec.levels + 1) if m.spec.mean else total
            out[b, i] = affine(m.output, normed(v[:width] * affine(m.context, total), m.norm, m.spec.norm))
    return out


@reference("reduced_attention")
def reduced_attention(m: Any, x: Tensor) -> Tensor:
    part, dk, count = m.spec, m.spec.head_width(x.shape[2]), x.shape[1]
    out, size, r = torch.zeros_like(x), m.spec.num_heads * m.spec.head_width(x.shape[2]), m.spec.ratio
    for b in range(x.shape[0]):
        blocks = []
        for first in range(0, count - r + 1, r):
            total = m.reduction.bias + sum(m.reduction.weight[:, :, t] @ x[b, first + t] for t in range(r))
            blocks.append(affine(m.key_value, normed(total, m.norm, part.norm)).split(size))
        for i in range(count):
            query, heads = affine(m.query, x[b, i]), []
            for h in range(part.num_heads):
                cut = slice(h * dk, (h + 1) * dk)
                raw = [math.exp(float(query[cut] @ k[cut]) / math.sqrt(dk)) for k, _ in blocks]
                mean = [w / sum(raw) * v[cut] for w, (_, v) in zip(raw, blocks, strict=True)]
                heads.append(sum(mean, torch.zeros(dk, dtype=x.dtype)))
            out[b, i] = affine(m.output, torch.cat(heads))
    return out


@reference("window_attention")
def window_attention(m: Any, x: Tensor) -> Tensor:
    part, dk, count = m.spec, m.spec.head_width(x.shape[2]), x.shape[1]
    size, out = part.num_heads * dk, torch.zeros_like(x)
    for b in range(x.shape[0]):
        rows = [list(affine(m.qkv, v).split(size)) for v in x[b]]
        for row in rows if m.query_bias is not None else ():
            row[0], row[2] = row[0] + m.query_bias, row[2] + m.value_bias
        for i in range(count):
            near = [j for j in range(count) if (j - part.shift) // part.window == (i - part.shift) // part.window]
            heads = []
            for h in range(part.num_heads):
                cut = slice(h * dk, (h + 1) * dk)
                raw = [score_in_window(m, rows[i][0][cut], rows[j][1][cut], h) + window_bias(m, i - j, h) for j in near]
                raw = [math.exp(score - max(raw)) for score in raw]
                heads.append(sum(r / sum(raw) * rows[j][2][cut] for r, j in zip(raw, near, strict=True)))
            out[b, i] = affine(m.output, torch.cat(heads))
    return out


def score_in_window(m: Any, q: Tensor, k: Tensor, head: int) -> float:
    product = float(q @ k)
    if m.spec.scores == "product":
        return product / math.sqrt(len(q))
    cosine = product / math.sqrt(float(q @ q)) / math.sqrt(float(k @ k))
    return cosine * min(100.0, math.exp(float(m.steepness[head])))


def window_bias(m: Any, away: int, head: int) -> float:
    match m.spec.relative.kind:
        case "none":
            return 0.0
        case "table":
            return float(m.relative.table[away + m.spec.window - 1, head])
        case _:
            share = 8 * away / (m.spec.window - 1)
            log = math.copysign(math.log2(1 + abs(share)) / 3, share)
            hidden = affine(m.relative.up, torch.tensor([log], dtype=torch.float64)).relu()
            return 16 / (1 + math.exp(-float(affine(m.relative.down, hidden)[head])))


@reference("monet")
def monet(m: Any, x: Tensor) -> Tensor:
    hidden, rank = m.spec.sizes(x.shape[2])
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        rows = [affine(m.input, v) for v in x[b]]
        pieces = [
            [v[first:last] for v in rows]
            for first, last in ((0, hidden), (hidden, hidden + rank), (hidden + rank, None))
        ]
        if m.spec.shift:
            pieces = [shifted(m, piece) for piece in pieces]
        for i, (a, low, d) in enumerate(zip(*pieces, strict=True)):
            product = normed(a, m.norm, m.spec.norm) * normed(affine(m.expand, low), m.expand_norm, m.spec.norm)
            out[b, i] = affine(m.output, product + d)
    return out
