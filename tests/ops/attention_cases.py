"""Problems of attention, small enough for loops: every mask, every kind of site, shared heads, unequal widths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qkv.ops.attention.reference import AttentionProblem, RelativeValues
from qkv.ops.masks import (
    AllOf,
    AnyOf,
    Blocks,
    Causal,
    Explicit,
    Fixed,
    Full,
    Levels,
    Mask,
    Prefix,
    Sites,
    Strided,
    Window,
)
from qkv.ops.positions import alibi_slopes, clipped_distances


def table(*shape: int, seed: int = 3) -> Tensor:
    """A random adjacency; about a third of the pairs are joined."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.35


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


MASKS: dict[str, Mask] = {
    "full": Full(),
    "causal": Causal(),
    "window": Window(3),
    "causal window": Causal() & Window(4),
    "causal window of 1": Causal() & Window(1),
    "window with sinks": Causal() & Window(3, sinks=2),
    "prefix or causal": Prefix(5) | Causal(),
    "prefix to itself, or causal window": Prefix(7, own=True) | (Causal() & Window(3)),
    "causal strided": Causal() & Strided(3),
    "causal fixed": Causal() & Fixed(4, summary=2),
    "blocks": Blocks(4),
    "blocks and their neighbours": Blocks(3, 1, 2),
    "causal, on one level": Causal() & Levels((1, 2, 6)),
    "on other levels": Levels((1, 3), "across"),
    "local and strided": Causal() & (Window(3) | Strided(4)),
    "wide window": Causal() & Window(100),
    "adjacency": Explicit(table(1, 1, 24, 24)),
    "adjacency by row": Explicit(table(2, 1, 24, 24)),
    "adjacency by head": Explicit(table(1, 4, 24, 24)),
    "adjacency by row and head, causal": Causal() & Explicit(table(2, 4, 24, 24)),
    "some see nothing": Blocks(4) & Prefix(6),
    "none sees anything": Explicit(torch.zeros(1, 1, 24, 24, dtype=torch.bool)),
}

SITES = ("aligned", "aligned, fewer queries", "padded", "packed", "ring")


@dataclass(frozen=True)
class Case:
    """One problem and the sizes of its inputs."""

    mask: str = "causal"
    sites: str = "aligned"
    queries: int = 9
    heads: tuple[int, int] = (4, 2)
    widths: tuple[int, int] = (6, 3)
    alibi: bool = False
    dropout: float = 0.0
    added: bool = False
    top_k: int | None = None
    values: bool = False
    softcap: float | None = None
    sink: bool = False

    @property
    def keys(self) -> int:
        return self.queries + 5 if self.sites in ("aligned, fewer queries", "ring") else self.queries

    def problem(self) -> AttentionProblem:
        slopes = alibi_slopes(self.heads[0]) if self.alibi else None
        places = sites(self.sites, self.queries, self.keys)
        added = random(1, self.heads[0], self.queries, self.keys) if self.added else None
        values = (
            RelativeValues(random(5, self.widths[1]), clipped_distances(places.query, places.key, 2))
            if self.values
            else None
        )
        return AttentionProblem(
            MASKS[self.mask],
            places,
            self.widths[0] ** -0.5,
            slopes,
            self.dropout,
            added,
            self.top_k,
            values,
            self.softcap,
            random(self.heads[0]) if self.sink else None,
        )

    def inputs(self, dtype: torch.dtype = torch.float64, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, N, Dk), k (B, G, M, Dk), v (B, G, M, Dv)."""
        generator = torch.Generator().manual_seed(self.queries)
        shapes = [(self.heads[0], self.queries, self.widths[0]), (self.heads[1], self.keys, self.widths[0])]
        shapes.append((self.heads[1], self.keys, self.widths[1]))
        q, k, v = (torch.randn(batch, *shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
        return q, k, v

    @property
    def aligned(self) -> bool:
        return self.sites.startswith("aligned")

    @property
    def same_for_all(self) -> bool:
        """The mask is one for all rows and heads."""
        return "by row" not in self.mask and "by head" not in self.mask

    def changed(self, **fields: Any) -> Case:
        return replace(self, **fields)


def sites(kind: str, queries: int, keys: int) -> Sites:
    """Two rows of positions."""
    steps = torch.arange(keys)
    match kind:
        case "aligned" | "aligned, fewer queries":
            return Sites(steps[None, keys - queries :], steps[None], aligned=True)
        case "padded":
            lengths = torch.tensor([queries, max(queries - 4, 0)])
            return Sites(steps[None], steps[None].expand(2, -1).masked_fill(steps >= lengths[:, None], -1))
        case "packed":
            documents = [[2, 2, queries - 4], [queries - 1, 1]]
            numbers = torch.tensor([[number for number, n in enumerate(row) for _ in range(n)] for row in documents])
            restarted = torch.tensor([[step for n in row for step in range(n)] for row in documents])
            return Sites(restarted, restarted, numbers, numbers)
        case "ring":
            held = torch.stack([(steps + 3) % keys, (steps + 7) % keys])
            held[1] = held[1].masked_fill(held[1] >= keys - 2, -1)
            return Sites(torch.stack([steps[-queries:], steps[-queries:] - 2]), held)
    raise ValueError(kind)


def sees(mask: Mask, row: int, head: int, i: int, j: int) -> bool:
    """Whether query i sees key j, by the sentence in the mask's docstring."""
    match mask:
        case Full():
            return True
        case Causal():
            return j <= i
        case Window():
            return abs(i - j) < mask.size or j < mask.sinks
        case Prefix():
            return j < mask.length and (i < mask.length or not mask.own)  # type: ignore[operator]
        case Strided():
            return (i - j) % mask.stride == 0
        case Fixed():
            return i // mask.stride == j // mask.stride or mask.stride - j % mask.stride <= mask.summary
        case Blocks():
            return j // mask.size - i // mask.size in range(-mask.back, mask.ahead + 1)
        case Levels():
            row = [factor for t in range(1, 200) for factor in mask.factors if t % factor == 0]
            return i == j or (row[i] == row[j]) == (mask.see == "within")
        case Explicit():
            shown = mask.table
            return bool(shown[row % shown.shape[0], head % shown.shape[1], i, j])
        case AllOf():
            return all(sees(m, row, head, i, j) for m in mask.masks)
        case AnyOf():
            return any(sees(m, row, head, i, j) for m in mask.masks)
    raise TypeError(f"no sentence is known for {type(mask).__name__}")


def by_loops(q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """O (B, H, N, Dv), one query at a time, each over the list of keys that it sees."""
    out = []
    for row in range(q.shape[0]):
        for head in range(q.shape[1]):
            shared = head * k.shape[1] // q.shape[1]
            out += [
                one_query(q[row, head, n], k[row, shared], v[row, shared], problem, (row, head, n))
                for n in range(q.shape[2])
            ]
    return torch.stack(out).view(*q.shape[:3], v.shape[-1])


def one_query(
    q: Tensor, keys: Tensor, values: Tensor, problem: AttentionProblem, where: tuple[int, int, int]
) -> Tensor:
    row, head, n = where
    places = problem.sites
    i = int(places.query[row % places.query.shape[0], n])
    scores, seen, stands = [], [], []
    for m, j in enumerate(places.key[row % places.key.shape[0]].tolist()):
        if j < 0 or not sees(problem.mask, row, head, i, j) or other_document(places, row, n, m):
            continue
        slope = 0.0 if problem.slopes is None else float(problem.slopes[head])
        score = problem.scale * (q * keys[m]).sum()
        if problem.softcap is not None:
            score = problem.softcap * torch.tanh(score / problem.softcap)
        score = score - slope * (i - j)
        stands.append(j)
        scores.append(
            score if problem.added is None else score + problem.added[row % problem.added.shape[0], head, n, m]
        )
        more = problem.values
        seen.append(values[m] if more is None else values[m] + more.table[more.index[row % more.index.shape[0], n, m]])
    if not seen:
        return values.sum(0) * 0 + (q + keys.sum(0)).sum() * 0
    if problem.top_k is not None:
        best = sorted(range(len(scores)), key=lambda place: (-round(scores[place].item(), 9), stands[place]))[
            : problem.top_k
        ]
        scores, seen = [scores[place] for place in best], [seen[place] for place in best]
    largest = max(score.item() for score in scores)
    raw = [(score - largest).exp() for score in scores]
    total = sum(raw) if problem.sink is None else sum(raw) + (problem.sink[head] - largest).exp()
    return sum((r * value for r, value in zip(raw, seen, strict=True)), torch.zeros_like(values[0])) / total


def other_document(places: Sites, row: int, n: int, m: int) -> bool:
    if places.query_segment is None or places.key_segment is None:
        return False
    return int(places.query_segment[row, n]) != int(places.key_segment[row, m])
