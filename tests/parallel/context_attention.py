"""Checks of attention over ranks against the reference on one process, for ``context_process``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.layers.relative import Relative, build_relative
from qkv.ops.attention import reference
from qkv.ops.attention.reference import AttentionProblem, ScoreTerm
from qkv.ops.masks import Causal, Full, Mask, Prefix, Sites, Strided, Window
from qkv.ops.positions import alibi_slopes
from qkv.parallel.context.heads import HeadExchange
from qkv.parallel.context.layout import RankLayout
from qkv.parallel.context.places import Shared
from qkv.parallel.context.ranks import Ranks
from qkv.parallel.context.ring import RingAttention
from qkv.spec.branches import Attention
from qkv.spec.parts import Alibi, Shaw, T5Buckets

HEADS, DIM, ROWS = 4, 6, 2
CAUSAL = Causal()


@dataclass(frozen=True)
class Case:
    """What attention is computed under. packed, padded: documents in rows, padding at their end."""

    mask: Mask = CAUSAL
    groups: int = HEADS
    slopes: bool = False
    relative: Any = None
    softcap: float | None = None
    sink: bool = False
    packed: bool = False
    padded: bool = False
    length: int = 48
    value_dim: int = DIM
    blind: bool = False


CASES: dict[str, Case] = {
    "causal": Case(),
    "causal, one position a chunk": Case(length=8),
    "full": Case(mask=Full()),
    "full, padded": Case(mask=Full(), padded=True),
    "window": Case(mask=Causal() & Window(5)),
    "window with sinks": Case(mask=Causal() & Window(5, 2)),
    "window, two-way": Case(mask=Window(7)),
    "strided": Case(mask=Causal() & Strided(3)),
    "prefix": Case(mask=Causal() | Prefix(9)),
    "packed": Case(packed=True),
    "packed window": Case(packed=True, mask=Causal() & Window(4)),
    "packed, padded, full": Case(packed=True, padded=True, mask=Full()),
    "grouped keys": Case(groups=2),
    "one key head": Case(groups=1, value_dim=3),
    "alibi": Case(slopes=True, groups=2),
    "alibi, packed": Case(slopes=True, packed=True),
    "buckets": Case(relative=T5Buckets(num_buckets=8, max_distance=20)),
    "distances": Case(relative=Shaw(max_distance=5), groups=2),
    "rounded slopes": Case(relative=Alibi(rounded="bf16")),
    "soft cap": Case(softcap=0.5, slopes=True),
    "sink": Case(sink=True, groups=2),
    "no visible key": Case(blind=True),
    "all": Case(
        mask=Causal() & Window(17, 1),
        groups=2,
        slopes=True,
        relative=Shaw(max_distance=4),
        softcap=0.7,
        sink=True,
        packed=True,
        padded=True,
        value_dim=5,
    ),
}
NOT_BY_HEADS = ("no visible key", "soft cap", "all")
"""Cases that the twins of one process state otherwise than the reference, such as a sink with a soft cap."""


class Row:
    """Inputs of a case for whole rows, the same in every process, with gradients of the output."""

    def __init__(self, case: Case, dtype: torch.dtype):
        self.case, length = case, case.length
        generator = torch.Generator().manual_seed(4)
        shapes = (HEADS, DIM), (case.groups, DIM), (case.groups, case.value_dim), (HEADS, case.value_dim)
        self.q, self.k, self.v, self.seen = (
            torch.randn(ROWS, heads, length, dim, generator=generator, dtype=torch.float64).to(dtype)
            for heads, dim in shapes
        )
        steps = torch.arange(length)
        self.positions, self.segments, self.key = steps[None], None, steps[None]
        if case.packed:
            borders = torch.tensor([[0, 11, 12, 30], [0, 5, 29, 40]])
            self.segments = (steps[None, :, None] >= borders[:, None]).sum(-1)
            starts = torch.gather(borders, 1, self.segments - 1)
            self.positions = self.key = steps - starts
        if case.padded:
            lengths = torch.tensor([length - 7, length])
            self.key = self.positions.expand(ROWS, -1).masked_fill(steps >= lengths[:, None], -1)
            self.seen = self.seen * (steps < lengths[:, None])[:, None, :, None]
        if case.blind:
            self.key = self.key.masked_fill(steps < 20, -1)
        self.sink = torch.randn(HEADS, generator=generator, dtype=torch.float64).to(dtype) if case.sink else None
        self.slopes = alibi_slopes(HEADS, torch.device("cpu"), dtype) if case.slopes else None
        self.relative = self._relative(generator, dtype)

    def _relative(self, generator: torch.Generator, dtype: torch.dtype) -> Relative | None:
        if self.case.relative is None:
            return None
        relative = build_relative(Attention(num_heads=HEADS, head_dim=DIM, relative=self.case.relative), HEADS * DIM)
        for table in relative.parameters():
            table.data = torch.randn(table.shape, generator=generator)
        return relative.to(dtype)

    def sites(self, index: Tensor | None = None) -> Sites:
        """Places of the positions ``index`` of the rows, or of all of them."""
        query, key, segments = (
            t if t is None or index is None else t[:, index] for t in (self.positions, self.key, self.segments)
        )
        assert query is not None
        assert key is not None
        plain = not (self.case.packed or self.case.padded or self.case.blind)
        return Sites(query, key, segments, segments, aligned=plain)

    def problem(self, sites: Sites, elsewhere: bool, q: Tensor) -> AttentionProblem:
        term, added, scale = None, None, 0.7
        if self.relative is not None:
            compute = partial(self.relative.bias, scale=scale, context=Context(sites.query))
            if elsewhere:
                term = ScoreTerm(compute, self.relative.tables)
            else:
                added = compute(q, sites)
        return AttentionProblem(
            self.case.mask,
            sites,
            scale,
            self.slopes,
            added=added,
            softcap=self.case.softcap,
            sink=self.sink,
            term=term,
        )

    def leaves(self) -> list[Tensor]:
        """Weights that all ranks hold: their gradients are added up."""
        return [*([] if self.sink is None else [self.sink]), *(self.relative.parameters() if self.relative else [])]


def results(row: Row, attend: Any, index: Tensor | None, elsewhere: bool) -> list[Tensor]:
    """Output and gradients of q, k, v and of the weights, for the positions ``index``."""
    inputs = [t if index is None else t[:, :, index] for t in (row.q, row.k, row.v)]
    q, k, v = (t.clone().requires_grad_() for t in inputs)
    leaves = [t.requires_grad_() for t in row.leaves()]
    sites = row.sites(index)
    out = attend(q, k, v, row.problem(sites, elsewhere, q))
    seen = row.seen if index is None else row.seen[:, :, index]
    grads = torch.autograd.grad((out * seen).sum(), (q, k, v, *leaves))
    return [out.detach(), *grads]


def farthest(case: Case, ranks: Ranks, layout: RankLayout, way: type[Shared], dtype: torch.dtype) -> float:
    """Largest difference to the reference in float64 of outputs and gradients, relative to the largest value."""
    exact, row = Row(case, torch.float64), Row(case, dtype)
    expected = results(exact, reference.attention, None, elsewhere=False)
    index = layout.positions(ranks.rank, case.length // ranks.size)
    got = results(row, way(ranks, layout), index, elsewhere=True)
    ranks.add_up(got[4:])
    worst = 0.0
    for number, (a, b) in enumerate(zip(got, expected, strict=True)):
        b = b[:, :, index] if number < 4 else b
        if number == 0 and case.padded:
            a, b = a * (row.seen[:, :, index] != 0), b * (row.seen[:, :, index] != 0)
        assert a.dtype == dtype, f"{a.dtype}"
        worst = max(worst, float((a.double() - b).abs().max()) / max(1.0, float(b.abs().max())))
    return worst


EVERYWHERE = ("causal", "window", "packed", "grouped keys", "alibi")
"""Cases that are computed by 2 ranks and by 4; the others by either."""


def attention_checks(ranks: Ranks, share: int) -> dict[str, float]:
    """Largest differences by "way, layout, precision, case", of one of three shares of the cases."""
    labels = [
        (way, folded, dtype, name)
        for folded in (True, False)
        for name in CASES
        for way in (RingAttention, HeadExchange)
        for dtype in (torch.float64, torch.float32)
        if not (way is HeadExchange and name in NOT_BY_HEADS) and (folded or dtype == torch.float64)
    ]
    return {
        f"{way.__name__}, {'folded' if folded else 'in order'}, {str(dtype)[6:]}, {name}": farthest(
            CASES[name], ranks, RankLayout(ranks.size, folded), way, dtype
        )
        for number, (way, folded, dtype, name) in enumerate(labels)
        if number % 3 == share or (folded and dtype == torch.float64 and name in EVERYWHERE)
    }


def steps_taken(ranks: Ranks) -> dict[str, list[int]]:
    """How often keys move on under masks, in both layouts."""
    length = 64
    taken = dict[str, list[int]]()
    for folded in (True, False):
        layout = RankLayout(ranks.size, folded)
        index = layout.positions(ranks.rank, length // ranks.size)[None]
        for name, mask in (("causal", Causal()), ("window", Causal() & Window(4)), ("full", Full())):
            ring = RingAttention(ranks, layout)
            places = ring.places(replace(Sites(index, index)))
            pairs = sum(
                (block.queries.stop - block.queries.start) * (block.keys.stop - block.keys.start)
                for rank in range(ranks.size)
                for block in places.blocks(mask, rank)
            )
            taken[f"{name}, {'folded' if folded else 'in order'}"] = [places.steps(mask), pairs]
    return taken
