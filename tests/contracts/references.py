"""Each mixer a second time, as loops over single positions that read like its equation.

No code is shared with the package's. Every function maps the module's own weights and x (B, N, D) to y (B, N, D), in
float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qkv.spec import masks
from qkv.spec.parts import (
    Alibi,
    BatchNorm,
    LayerNorm,
    LinearScaling,
    NoNorm,
    Norm,
    RMSNorm,
    Rope,
    RopeAxes,
    Shaw,
    T5Buckets,
)

Reference = Callable[[Any, Tensor], Tensor]
REFERENCES: dict[str, Reference] = {}


def reference(kind: str) -> Callable[[Reference], Reference]:
    def register(function: Reference) -> Reference:
        REFERENCES[kind] = function
        return function

    return register


def level(place: int, factors: Sequence[int]) -> int:
    """The factor of the vector at a place of a row in which windows follow their last positions."""
    row, t = list[int](), 0
    while len(row) <= place:
        t += 1
        row += [factor for factor in factors if t % factor == 0]
    return row[place]


def visible(mask: masks.Mask, i: int, j: int) -> bool:
    """Whether query i sees key j, by the sentence in the mask's spec."""
    match mask:
        case masks.Full():
            return True
        case masks.Causal():
            return j <= i
        case masks.Window():
            return i - mask.size < j < i + mask.size or j in range(mask.sinks)
        case masks.Prefix():
            return j in range(mask.length)
        case masks.Strided():
            return (i - j) % mask.stride == 0
        case masks.Fixed():
            return i // mask.stride == j // mask.stride or j % mask.stride in range(mask.stride)[-mask.summary :]
        case masks.Blocks():
            return j // mask.size - i // mask.size in range(-mask.back, mask.ahead + 1)
        case masks.Levels():
            return i == j or (level(i, mask.factors) == level(j, mask.factors)) == (mask.see == "within")
        case masks.AllOf():
            return all(visible(m, i, j) for m in mask.masks)
        case masks.AnyOf():
            return any(visible(m, i, j) for m in mask.masks)
    raise TypeError(f"no sentence is known for {mask}")


def affine(linear: Any, x: Tensor) -> Tensor:
    y = linear.weight @ x
    return y if linear.bias is None else y + linear.bias


def turned(x: Tensor, position: int, rope: Rope) -> Tensor:
    """Pairs (p, p + r/2) of the first r features as complex numbers, times e^(i position θ_p)."""
    r = int(len(x) * rope.fraction)
    divisor = rope.scaling.factor if isinstance(rope.scaling, LinearScaling) else 1.0
    y = x.clone()
    for p in range(r // 2):
        angle = position * rope.base ** (-2 * p / r) / divisor
        y[p] = x[p] * math.cos(angle) - x[p + r // 2] * math.sin(angle)
        y[p + r // 2] = x[p] * math.sin(angle) + x[p + r // 2] * math.cos(angle)
    return y


def normed(x: Tensor, norm: Any, part: Norm) -> Tensor:
    """One vector of a head."""
    match part:
        case NoNorm():
            return x
        case RMSNorm():
            return x / math.sqrt(float((x * x).mean()) + part.eps) * factor(norm, part)
        case LayerNorm():
            away = x - x.mean()
            bias = norm.bias if part.bias else 0.0
            return away / math.sqrt(float((away * away).mean()) + part.eps) * factor(norm, part) + bias
        case BatchNorm():
            return (x - norm.running_mean) / (norm.running_var + part.eps).sqrt() * norm.weight + norm.bias
    raise TypeError(f"no formula is known for {part}")


def factor(norm: Any, part: RMSNorm | LayerNorm) -> Any:
    """The learned factor of each feature."""
    if not part.weight:
        return 1.0
    return 1 + norm.weight if part.zero_centred else norm.weight


def head_of(heads: list[Tensor], h: int, norm: Any, part: Any, position: int) -> Tensor:
    """Head h of the queries or keys of a position, normalised and turned in the order of the part."""

    def turns(v: Tensor) -> Tensor:
        rope = part.relative.rope if isinstance(part.relative, RopeAxes) else part.relative  # words: all axes alike
        return turned(v, position, rope) if isinstance(rope, Rope) else v

    late = part.qk_norm_after == "rotation"
    heads = [turns(v) for v in heads] if late else heads
    match part.qk_norm_over:
        case "head":
            own = normed(heads[h], norm, part.qk_norm)
        case "each_head":
            bias = 0.0 if norm.bias is None else norm.bias[h]
            plain = normed(heads[h], norm, part.qk_norm.unweighted)
            own = plain * (norm.weight[h] + part.qk_norm.zero_centred) + bias
        case _:
            own = normed(torch.cat(heads), norm.norm, part.qk_norm)[h * len(heads[h]) : (h + 1) * len(heads[h])]
    return own if late else turns(own)


@reference("attention")
def attention(m: Any, x: Tensor) -> Tensor:
    part, (dk, _) = m.spec, m.spec.dims(x.shape[-1])
    heads, groups = part.num_heads, part.kv_heads
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        rows = [projected(m, v) for v in x[b]]
        queries = [row[: heads * dk].split(dk) for row in rows]
        keys = [row[heads * dk : (heads + groups) * dk].split(dk) for row in rows]
        for i in range(x.shape[1]):
            mixed = []
            for h in range(heads):
                g = h * groups // heads
                q = head_of(queries[i], h, m.query_norm, part, i) * grown(part.query_scale, i)
                scores, values = [], []
                learned = Learned(m, part, h)
                for j in range(x.shape[1]):
                    if not visible(part.mask, i, j):
                        continue
                    dot = float(q @ head_of(keys[j], g, m.key_norm, part, j))
                    scale = 1 / (part.temperature * math.sqrt(dk))
                    score = (
                        scale * dot if part.softcap is None else part.softcap * math.tanh(scale * dot / part.softcap)
                    )
                    score += scale * float((q * learned.key(j - i)).sum())
                    scores.append(score + sloped(part.relative, h, heads, scale, i, j) + learned.score(j - i))
                    value = value_of(m, x[b, j], g)
                    values.append(value + learned.value(j - i, value))
                kept = sorted(range(len(scores)), key=lambda place: (-round(scores[place], 9), place))[: part.top_k]
                raw = [math.exp(s - max(scores)) if place in kept else 0.0 for place, s in enumerate(scores)]
                total = sum(raw) + (0.0 if m.sink is None else math.exp(float(m.sink[h]) - max(scores)))
                weighted = sum(r / total * v for r, v in zip(raw, values, strict=True))
                if part.shaped:
                    weighted = shaped(m, weighted, h, [value_of(m, v, g) for v in x[b]], i)
                if part.value_convolution:
                    weighted = weighted + convolved(m.value_convolution, [value_of(m, v, g) for v in x[b]], h, i)
                mixed.append(weighted * output_gate(m, x[b, i], h))
            joined = torch.cat(mixed)
            joined = joined if m.output_norm is None else normed(joined, m.output_norm, part.output_norm)
            out[b, i] = affine(m.output, joined) if part.output == "projected" else joined
    return out


def shaped(m: Any, weighted: Tensor, h: int, values: list[Tensor], i: int) -> Tensor:
    """Shaped attention of position i: its own value added, the mean of the visible values subtracted."""
    seen = [value for j, value in enumerate(values) if visible(m.spec.mask, i, j)]
    mixed = m.shape.attended[h] * weighted + m.shape.itself[h] * values[i]
    return mixed - m.shape.uniform[h] * sum(seen) / len(seen)


@reference("differential_attention")
def differential_attention(m: Any, x: Tensor) -> Tensor:
    part, (dk, dv) = m.spec, m.spec.dims(x.shape[-1])
    heads, groups, out = part.num_heads, part.kv_heads, torch.zeros_like(x)
    factor = math.exp(float(m.first_query @ m.first_key)) - math.exp(float(m.second_query @ m.second_key)) + part.start

    def head(vectors: Tensor, h: int, norm: Any, position: int) -> Tensor:
        own = normed(vectors.split(dk)[h], norm, part.qk_norm)
        return turned(own, position, part.relative) if isinstance(part.relative, Rope) else own

    def pair(vectors: Tensor, g: int) -> Tensor:
        values = vectors.split(dv)
        return torch.cat((values[g % (groups // 2)], values[g % (groups // 2) + groups // 2]))

    def mixed(rows: list[tuple[Tensor, ...]], h: int, i: int) -> Tensor:
        g, seen = h * groups // heads, [j for j in range(len(rows)) if visible(part.mask, i, j)]
        query = head(rows[i][0], h, m.query_norm, i) / (part.temperature * math.sqrt(dk))
        raw = [math.exp(float(query @ head(rows[j][1], g, m.key_norm, j))) for j in seen]
        return sum((r / sum(raw) * pair(rows[j][2], g) for r, j in zip(raw, seen, strict=True)), x.new_zeros(2 * dv))

    for b in range(x.shape[0]):
        rows = [affine(m.qkv, v).split([heads * dk, groups * dk, groups * dv]) for v in x[b]]
        for i in range(x.shape[1]):
            outs = []
            for h in range(heads // 2):
                away = mixed(rows, h, i) - factor * mixed(rows, h + heads // 2, i)
                outs.append((1 - part.start) * away / math.sqrt(float((away * away).mean()) + part.eps))
            out[b, i] = affine(m.output, torch.cat(outs))
    return out


def convolved(m: Any, values: list[Tensor], h: int, i: int) -> Tensor:
    """The convolution of the values of head h around position i."""
    size = m.weight.shape[1]
    near = [(t, i + t - size // 2) for t in range(size)]
    return sum(m.weight[h, t] * values[j] for t, j in near if 0 <= j < len(values))  # type: ignore[return-value]


@reference("collision_attention")
def collision_attention(m: Any, x: Tensor) -> Tensor:
    part, (dk, dv) = m.spec, m.spec.dims(x.shape[-1])
    heads, groups = part.num_heads, part.kv_heads
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        rows = [affine(m.qkv, v) for v in x[b]]
        queries = [row[: heads * dk].split(dk) for row in rows]
        keys = [row[heads * dk : (heads + groups) * dk].split(dk) for row in rows]
        values = [row[(heads + groups) * dk :].split(dv) for row in rows]
        for i in range(x.shape[1]):
            mixed = []
            for h in range(heads):
                g, total = h * groups // heads, torch.zeros(dv, dtype=x.dtype)
                q = queries[i][h] if m.query_norm is None else normed(queries[i][h], m.query_norm, part.qk_norm)
                for j in range(x.shape[1]):
                    if visible(part.mask, i, j):
                        k = keys[j][g] if m.key_norm is None else normed(keys[j][g], m.key_norm, part.qk_norm)
                        cosine = float(q @ k) / math.sqrt(float(q @ q) * float(k @ k))
                        total = total + (1 - math.acos(cosine) / math.pi) ** part.hash_length * values[j][g]
                total = total / math.sqrt(float(total @ total))
                if part.value_convolution:
                    total = total + convolved(m.value_convolution, [value[g] for value in values], h, i)
                mixed.append(total)
            out[b, i] = affine(m.output, torch.cat(mixed))
    return out


def limited(x: Tensor, part: Any) -> Tensor:
    """Queries, keys and values, each number between -clip and clip."""
    most = math.inf if part.clip is None else part.clip
    return torch.tensor([min(max(float(number), -most), most) for number in x], dtype=x.dtype)


def output_gate(m: Any, v: Tensor, h: int) -> Tensor:
    """Return the factors of the output of head h."""
    part = m.spec.output_gate
    if part.identity or part.kind == "factor":
        return torch.tensor(1.0 if part.identity else part.factor, dtype=v.dtype)
    mapped = affine(m.output_gate.map, v).chunk(m.spec.num_heads)[h]
    return sigmoid(mapped) if part.function == "sigmoid" else (1 + mapped.exp()).log()


def projected(m: Any, v: Tensor) -> Tensor:
    """Queries, keys and values of one position; keys may have no bias while the others have one."""
    y, part = affine(m.qkv, v), m.spec
    if part.bias and not part.key_bias:
        y[: len(m.query_bias)] += m.query_bias
        if m.value_bias is not None:
            y[len(y) - len(m.value_bias) :] += m.value_bias
    return limited(y, part)


def grown(scale: Any, position: int) -> float:
    """The factor of the query at a position."""
    return 1.0 if scale is None else 1 + scale.rate * math.log(1 + (position + scale.first) // scale.length)


def value_of(m: Any, v: Tensor, g: int) -> Tensor:
    """The value of K/V head g."""
    part, (dk, dv) = m.spec, m.spec.dims(len(v))
    first = (part.num_heads + part.kv_heads) * dk
    all_heads = v if part.values == "identity" else projected(m, v)[first:]
    return all_heads[g * dv : (g + 1) * dv]


@reference("latent_attention")
def latent_attention(m: Any, x: Tensor) -> Tensor:
    part, (dk, dr, dv), rank = m.spec, m.spec.dims(x.shape[-1]), m.spec.rank(x.shape[-1])
    rope = Rope(base=part.base, scaling=part.scaling)
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        both = [affine(m.down, v) for v in x[b]]
        latents = [normed(v[:rank], m.down_norm, part.norm) for v in both]
        shared = [turned(v[rank:], j, rope) for j, v in enumerate(both)]
        for i in range(x.shape[1]):
            read = normed(affine(m.query_down, x[b, i]), m.query_norm, part.norm) if part.query_rank else x[b, i]
            mixed = []
            for h in range(part.num_heads):
                q = affine(m.query, read)[h * (dk + dr) : (h + 1) * (dk + dr)]
                q = torch.cat((q[:dk], turned(q[dk:], i, rope)))
                seen = [j for j in range(x.shape[1]) if visible(part.mask, i, j)]
                ups = [affine(m.up, latents[j]) for j in seen]
                keys = [torch.cat((up[h * dk : (h + 1) * dk], shared[j])) for up, j in zip(ups, seen, strict=True)]
                first = part.num_heads * dk + h * dv
                raw = [math.exp(float(q @ k) / (part.temperature * math.sqrt(dk + dr))) for k in keys]
                mixed.append(sum(r / sum(raw) * up[first : first + dv] for r, up in zip(raw, ups, strict=True)))
            out[b, i] = affine(m.output, torch.cat(mixed))
    return out


def sloped(part: Any, h: int, heads: int, scale: float, i: int, j: int) -> float:
    """What ALiBi says of a key."""
    if not isinstance(part, Alibi):
        return 0.0
    slope = 2.0 ** (-8.0 * (h + 1) / heads)
    joined = bf16(bf16(slope) * bf16(j)) if part.rounded else -slope * (i - j)
    return joined * scale if part.scaled else joined


def bf16(x: float) -> float:
    """The nearest number of eight digits of two, the even one of two that are as near."""
    share, power = math.frexp(x)
    return math.ldexp(round(share * 256), power - 8)


class Learned:
    """What a learned relative part says of the distance d = j - i for head h."""

    def __init__(self, m: Any, part: Any, h: int):
        self.m, self.part, self.h = m.relative, part, h

    def key(self, d: int) -> Tensor:
        if not isinstance(self.part.relative, Shaw):
            return torch.zeros(1, dtype=torch.float64)
        reach = self.part.relative.max_distance
        return self.m.key_table[max(-reach, min(d, reach)) + reach]

    def value(self, d: int, like: Tensor) -> Tensor:
        if not isinstance(self.part.relative, Shaw) or not self.part.relative.values:
            return torch.zeros_like(like)
        reach = self.part.relative.max_distance
        return self.m.value_table[max(-reach, min(d, reach)) + reach]

    def score(self, d: int) -> float:
        part = self.part.relative
        if not isinstance(part, T5Buckets):
            return 0.0
        count = part.num_buckets if self.part.causal else part.num_buckets // 2
        first = count if d > 0 and not self.part.causal else 0
        away = max(-d, 0) if self.part.causal else abs(d)
        exact = count // 2
        if away >= exact:
            away = exact + int(math.log(away / exact) / math.log(part.max_distance / exact) * (count - exact) + 1e-6)
        table = self.m.table if self.m.table is not None else self.m.owner[0].table
        return float(table[first + min(away, count - 1), self.h])


@reference("token_shift")
def token_shift(m: Any, x: Tensor) -> Tensor:
    size = x.shape[-1] // m.spec.groups
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            mixed = torch.zeros(x.shape[-1], dtype=x.dtype)
            for feature in range(x.shape[-1]):
                source = i - feature // size
                mixed[feature] = x[b, source, feature] if source >= 0 else 0.0
            out[b, i] = affine(m.output, mixed)
    return out


@reference("causal_convolution")
def causal_convolution(m: Any, x: Tensor) -> Tensor:
    width = x.shape[-1]
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            y = m.bias.clone()
            for t in range(m.spec.kernel_size):
                source = i - t * m.spec.dilation
                if source >= 0:
                    y = y + m.weight[:, t * width : (t + 1) * width] @ x[b, source]
            out[b, i] = y[:width] * sigmoid(y[width:]) if m.spec.gated else y
    return out


@reference("gated_convolution")
def gated_convolution(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        parts = [affine(m.input, row).chunk(3) for row in x[b]]
        for i in range(x.shape[1]):
            taps = range(min(m.spec.kernel_size, i + 1))
            y = sum(m.convolution.weight[:, t] * parts[i - t][0] * parts[i - t][2] for t in taps)
            y = y if m.convolution.bias is None else y + m.convolution.bias
            out[b, i] = affine(m.output, parts[i][1] * y)
    return out


@reference("convolution")
def convolution(m: Any, x: Tensor) -> Tensor:
    width, size, length = x.shape[-1], m.spec.kernel_size, x.shape[1]
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for i in range(length):
            y = m.bias.clone()
            for t in range(size):
                source = i + t - size // 2
                place = size - 1 - t
                if source in range(length):
                    y = y + m.weight[:, place * width : (place + 1) * width] @ x[b, source]
            out[b, i] = y[:width] * sigmoid(y[width:]) if m.spec.gated else y
    return out


@reference("conformer_convolution")
def conformer_convolution(m: Any, x: Tensor) -> Tensor:
    size, length = m.spec.kernel_size, x.shape[1]
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        parts = [affine(m.input, row).chunk(2) for row in x[b]]
        for i in range(length):
            y = torch.zeros(x.shape[-1], dtype=x.dtype) if m.bias is None else m.bias.clone()
            for t in range(size):
                source = i + t - size // 2
                if source in range(length):
                    y = y + m.weight[:, size - 1 - t] * parts[source][0] * sigmoid(parts[source][1])
            out[b, i] = affine(m.output, activated(m.spec.activation, normed(y, m.norm, m.spec.norm)))
    return out


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


@reference("rnn")
@reference("gru")
@reference("lstm")
def recurrent(m: Any, x: Tensor) -> Tensor:
    """Each direction by itself; a backward one goes over the positions from the last to the first."""
    sides = {"forward": [1], "backward": [-1], "both": [1, -1]}[m.spec.direction]
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        seen = [
            list(run(m.spec.kind, cell, x[b].flip(0) if step < 0 else x[b]))
            for cell, step in zip(m.cells, sides, strict=True)
        ]
        turned_back = [hs[::step] for hs, step in zip(seen, sides, strict=True)]
        for i in range(x.shape[1]):
            out[b, i] = affine(m.output, torch.cat([hs[i] for hs in turned_back]))
    return out


def run(kind: str, cell: Any, row: Tensor) -> Iterator[Tensor]:
    """h after each vector of ``row``."""
    e = cell.hidden_weight.shape[1]
    h = memory = torch.zeros(e, dtype=row.dtype)
    for v in row:
        given = (cell.input_weight @ v + cell.input_bias).split(e)
        held = (cell.hidden_weight @ h + cell.hidden_bias).split(e)
        match kind:
            case "rnn":
                h = (given[0] + held[0]).tanh()
            case "gru":
                reset, update = sigmoid(given[0] + held[0]), sigmoid(given[1] + held[1])
                h = (1 - update) * (given[2] + reset * held[2]).tanh() + update * h
            case "lstm":
                enters, kept, new, leaves = (g + u for g, u in zip(given, held, strict=True))
                memory = sigmoid(kept) * memory + sigmoid(enters) * new.tanh()
                h = sigmoid(leaves) * memory.tanh()
        yield h


@reference("feed_forward")
def feed_forward(m: Any, x: Tensor) -> Tensor:
    if m.spec.activation == "xielu":
        return per_position(x, lambda v: affine(m.down, xielu(m.activation, affine(m.up, v))))
    return per_position(x, lambda v: affine(m.down, activated(m.spec.activation, affine(m.up, v))))


def xielu(m: Any, x: Tensor) -> Tensor:
    a, b = math.log1p(math.exp(float(m.positive))), 0.5 + math.log1p(math.exp(float(m.negative)))
    values = [a * v**2 + v / 2 if v > 0 else b * (math.exp(min(v, -1e-6)) - 1 - v) + v / 2 for v in x.tolist()]
    return torch.tensor(values, dtype=x.dtype)


@reference("memory_layer")
def memory_layer(m: Any, x: Tensor) -> Tensor:
    slots, size = m.spec.sizes(x.shape[-1])

    def at(v: Tensor) -> Tensor:
        y = torch.zeros_like(v)
        for h in range(m.spec.num_heads):
            q = m.query.weight[h * size : (h + 1) * size] @ v
            scores = [float(key @ q) for key in m.keys[h * slots : (h + 1) * slots]]
            if m.spec.activation == "softmax":
                raw = [math.exp(score / math.sqrt(size)) for score in scores]
                weights = [r / sum(raw) for r in raw]
            else:
                weights = activated(m.spec.activation, torch.tensor(scores, dtype=x.dtype)).tolist()
            y = y + sum(w * m.values.weight[:, h * slots + slot] for slot, w in enumerate(weights))
        return y

    return per_position(x, at)


@reference("gated_feed_forward")
def gated_feed_forward(m: Any, x: Tensor) -> Tensor:
    def at(v: Tensor) -> Tensor:
        gate, up = affine(m.gate_up, v).chunk(2)
        hidden = gated(m.spec, torch.cat((m.spec.gate_factor * gate, up)))
        return affine(m.down, hidden if m.norm is None else normed(hidden, m.norm, m.spec.norm))

    return per_position(x, at)


def gated(part: Any, both: Tensor) -> Tensor:
    """φ(min(g, c)) (clip(u, -c, c) + s), one feature after the other."""
    gate, up = both.tolist()[: len(both) // 2], both.tolist()[len(both) // 2 :]
    c = math.inf if part.limit is None else part.limit
    factors = torch.tensor([min(g, c) for g in gate], dtype=both.dtype)
    return activated(part.activation, factors) * both.new_tensor([max(-c, min(c, u)) + part.shift for u in up])


@reference("product_key_memory")
def product_key_memory(m: Any, x: Tensor) -> Tensor:
    """Every pair of sub-keys has a score, and the largest are kept."""
    part, d, n = m.spec, m.spec.size(x.shape[-1]), m.spec.num_keys

    def at(v: Tensor) -> Tensor:
        q, y = normed(m.query.weight @ v, m.query_norm, part.query_norm), torch.zeros_like(v)
        for h in range(part.num_heads):
            own, scores = q[h * d : (h + 1) * d], {}
            for i in range(n):
                for j in range(n):
                    scores[i * n + j] = float(own @ torch.cat((m.keys[h, 0, i], m.keys[h, 1, j])))
            kept = sorted(scores, key=lambda place: -scores[place])[: part.top_k]
            total = sum(math.exp(scores[place]) for place in kept)
            y = y + sum(math.exp(scores[place]) / total * m.values[place] for place in kept)
        return y

    return per_position(x, at)


def near_shares(logits: list[float], chosen: list[int], jitter: float) -> list[float]:
    """Shares of the chosen experts among those that are near and not chosen before; 0 for the others."""
    shares = [0.0] * len(logits)
    for place, e in enumerate(chosen):
        best, left = logits[e], [f for f in range(len(logits)) if f not in chosen[:place]]
        near = [f for f in left if (best - logits[f]) / max(abs(logits[f]), best) <= 2 * jitter]
        shares[e] = 1 / sum(math.exp(logits[f] - best) for f in near)
    return shares


def expert(part: Any, f: Any, v: Tensor) -> Tensor:
    """Output of the network of an expert for one position."""
    if not part.gated:
        return affine(f.down, activated(part.activation, affine(f.up, v)))
    return affine(f.down, gated(part, affine(f.gate_up, v)))


@reference("mixture_of_experts")
def mixture_of_experts(m: Any, x: Tensor) -> Tensor:
    part, network = m.spec, partial(expert, m.spec)

    def allowed(ranked: list[float]) -> list[int]:
        size = len(ranked) // part.groups
        groups = [list(range(g * size, (g + 1) * size)) for g in range(part.groups)]
        best = {
            g: sum(sorted((ranked[e] for e in group), reverse=True)[: part.group_best])
            for g, group in enumerate(groups)
        }
        return [e for g in sorted(best, key=lambda g: -best[g])[: part.top_groups or part.groups] for e in groups[g]]

    def at(v: Tensor) -> Tensor:
        logits = affine(m.router, v).tolist()
        raw = [math.exp(z) for z in logits]
        scores = [r / (1 + r) if part.router == "sigmoid" else r / sum(raw) for r in raw]
        bias = m.balance.bias.tolist() if part.balance.kind == "bias" else [0.0] * len(scores)
        ranked = [s + b for s, b in zip(logits if part.choice == "logits" else scores, bias, strict=True)]
        chosen = sorted(allowed(ranked), key=lambda e: -ranked[e])[: part.top_k]
        normalised = part.top_k > 1 if part.normalised is None else part.normalised
        if part.router == "sparse_mixer":
            scores = near_shares(logits, chosen, part.jitter)
        total = sum(scores[e] for e in chosen) if normalised else 1.0
        y, inwards = beside(v), part.weights_of == "inputs"
        for e in chosen:
            weight = part.scale * scores[e] / total
            y = y + (network(m.experts[e], weight * v) if inwards else weight * network(m.experts[e], v))
        return y if part.norm.identity else normed(y, m.norm, part.norm)

    def beside(v: Tensor) -> Tensor:
        if m.shared is None:
            return torch.zeros_like(v)
        gate = 1 / (1 + math.exp(-float(m.shared_gate.weight[0] @ v))) if part.shared_gate else 1.0
        return gate * part.shared_scale * network(m.shared, v)

    return per_position(x, at)


def per_position(x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.stack([torch.stack([f(v) for v in row]) for row in x])


def activated(name: str, x: Tensor) -> Tensor:
    """The activations that the samples use, one number at a time."""
    formulas: dict[str, Callable[[float], float]] = {
        "relu2": lambda v: max(v, 0.0) ** 2,
        "gelu": lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2))),
        "gelu_tanh": lambda v: v * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
        "silu": lambda v: v / (1 + math.exp(-v)),
    }
    return torch.tensor([formulas[name](v) for v in x.tolist()], dtype=x.dtype)
