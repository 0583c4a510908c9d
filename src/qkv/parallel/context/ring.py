"""Ring attention: blockwise attention whose blocks of keys and values travel (Liu, Zaharia & Abbeel 2023).

Rank r holds the queries, keys and values of its part of each row. In step s it has the keys and values of rank r - s
and adds their blocks to an online softmax, as ``ops.attention.twins.blockwise`` does, while it passes them on to rank
r + 1. After the last step that any query needs (all, or under a window the nearest ones), the output is a / l:

    m' = max(m, max s_b)     l' = l e^(m - m') + Σ e^(s_b - m')     a' = a e^(m - m') + e^(s_b - m') V_b

The backward pass goes round again. It computes the weights from the stored log-sum-exp L = m + ln l, and gradients of
keys and values travel with them, then return to their rank:

    P = e^(S - L)    dV = P^T dO    dS = P (dO V^T - Σ dO O)    dQ = scale dS K    dK = scale dS^T Q

A rank holds (N / R) (3 D) numbers of a row of N positions and two travelling blocks of keys and values. Sums are in
fp32 for narrower inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.ops.at_least_single import single_or_wider
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Sites
from qkv.parallel.context.places import PairBlock, RankPlaces, Shared
from qkv.parallel.context.ranks import Ranks
from qkv.system.errors import UserError


class RingAttention(Shared):
    """Attention of this rank's queries to the keys of all ranks, (q, k, v, problem) -> (B, H, N / R, Dv)."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
        """Compute attention; see ``ops.attention.reference``, with N / R for N and M.

        Raises ``UserError`` for dropout of attention weights.
        """
        if problem.dropout:
            raise UserError(
                "ring attention computes each weight twice, which dropout of weights would make different; set the "
                "mixer's dropout to 0, or parallel.context_by=heads"
            )
        tables = () if problem.term is None else problem.term.tables
        return _Ring.apply(q, k, v, problem.sink, (problem, self.places(problem.sites), self.ranks), *tables)  # type: ignore[no-any-return]


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sink: Tensor | None,
        where: tuple[AttentionProblem, RankPlaces, Ranks],
        *tables: Tensor,
    ) -> Tensor:
        problem, places, ranks = where
        sums = _Sums(q, v)
        steps = places.steps(problem.mask)
        with torch.autocast(q.device.type, enabled=False):
            travelling = [k, v]
            for step in range(steps + 1):
                moving = ranks.shift(travelling) if step < steps else None
                source = (ranks.rank - step) % ranks.size
                for block in places.blocks(problem.mask, source):
                    s = _Scores(q, travelling[0], problem, places.keys[source], block).masked
                    sums.add(block.queries, s, travelling[1][:, :, block.keys])
                travelling = travelling if moving is None else moving()
        out, log_sum = sums.result(sink)
        ctx.save_for_backward(q, k, v, sink, out, log_sum)
        ctx.where = where
        return out.to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sink, out, log_sum = ctx.saved_tensors
        problem, places, ranks = ctx.where
        grad = grads[0].to(out.dtype)
        dot = (grad * out).sum(-1)
        slopes = _Gradients(q, grad, dot, log_sum, problem)
        steps = places.steps(problem.mask)
        with torch.autocast(q.device.type, enabled=False):
            travelling = [k, v]
            sums = [torch.zeros_like(t, dtype=out.dtype) for t in (k, v)]
            for step in range(steps + 1):
                moving = ranks.shift(travelling) if step < steps else None
                source = (ranks.rank - step) % ranks.size
                for block in places.blocks(problem.mask, source):
                    slopes.add(travelling, sums, places.keys[source], block)
                if moving is not None:
                    sums, travelling = ranks.shift(sums)(), moving()
            dk, dv = ranks.shift(sums, -steps)()
        dsink = None if sink is None else -((sink[:, None] - log_sum).exp() * dot).sum((0, 2)).to(sink.dtype)
        return slopes.dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dsink, None, *slopes.of_tables


class _Sums:
    """Online softmax of this rank's queries: largest score m, sum l and weighted values a."""

    def __init__(self, q: Tensor, v: Tensor):
        wide = single_or_wider(q.dtype)
        self.largest = torch.full(q.shape[:3], -torch.inf, dtype=wide, device=q.device)
        self.total = torch.zeros_like(self.largest)
        self.out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=wide, device=q.device)

    def add(self, queries: slice, scores: Tensor, v: Tensor) -> None:
        """Add the scores (B, H, n, m) of a block, and its values v (B, G, m, Dv)."""
        m = torch.maximum(self.largest[:, :, queries], scores.amax(-1))
        base = m.masked_fill(m == -torch.inf, 0.0)  # no visible key so far: e^(-inf - 0) = 0, not NaN
        p = (scores - base[..., None]).exp()
        decay = (self.largest[:, :, queries] - base).exp()
        self.total[:, :, queries] = self.total[:, :, queries] * decay + p.sum(-1)
        mixed = p.to(v.dtype) @ _repeated(v, p.shape[1])
        self.out[:, :, queries] = self.out[:, :, queries] * decay[..., None] + mixed
        self.largest[:, :, queries] = m

    def result(self, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return (output (B, H, N, Dv), log-sum-exp (B, H, N)); both 0 and infinite for queries that see no key."""
        if sink is not None:
            sink = sink.to(self.total.dtype)[:, None]
            m = torch.maximum(self.largest, sink)
            decay = (self.largest - m).exp()
            self.total, self.largest = self.total * decay + (sink - m).exp(), m
            self.out = self.out * decay[..., None]
        blind = self.total == 0
        log_sum = (self.largest + self.total.log()).masked_fill(blind, torch.inf)
        return self.out / self.total.masked_fill(blind, 1.0)[..., None], log_sum


class _Scores:
    """Scores of a block: ``capped`` scale · q k after the soft cap, and ``masked`` with biases, -inf at hidden keys."""

    def __init__(self, q: Tensor, k: Tensor, problem: AttentionProblem, sites: Sites, block: PairBlock):
        self.queries, self.keys = q[:, :, block.queries], _repeated(k[:, :, block.keys], q.shape[1])
        self.sites = sites.part(block.queries, block.keys)
        products = (problem.scale * self.queries @ self.keys.transpose(-1, -2)).to(single_or_wider(q.dtype))
        self.capped = problem.capped(products)
        s = self.capped
        if problem.slopes is not None:
            distance = self.sites.query[:, None, :, None] - self.sites.key[:, None, None, :]
            s = s - problem.slopes[None, :, None, None] * distance
        term = None if problem.term is None else problem.term.compute(self.queries, self.sites)
        s = s if term is None else s + term
        self.masked = s if block.whole else s.masked_fill(~self.sites.visible(problem.mask, q.shape[1]), -torch.inf)


class _Gradients:
    """Gradients of this rank's queries (``dq``) and of the tables of a term, added up block by block."""

    def __init__(self, q: Tensor, grad: Tensor, dot: Tensor, log_sum: Tensor, problem: AttentionProblem):
        self.q, self.grad, self.dot, self.log_sum, self.problem = q, grad, dot, log_sum, problem
        self.dq = torch.zeros_like(q, dtype=grad.dtype)
        self.of_tables = [torch.zeros_like(t) for t in problem.term.tables] if problem.term else []

    def add(self, travelling: list[Tensor], sums: list[Tensor], sites: Sites, block: PairBlock) -> None:
        """Add a block of the keys and values ``travelling``, whose gradients are added to ``sums``."""
        (k, v), (dk, dv), problem = travelling, sums, self.problem
        scores = _Scores(self.q, k, problem, sites, block)
        p = (scores.masked - self.log_sum[:, :, block.queries, None]).exp()
        g = self.grad[:, :, block.queries]
        values = _repeated(v[:, :, block.keys], p.shape[1]).to(g.dtype)
        ds = p * (g @ values.transpose(-1, -2) - self.dot[:, :, block.queries, None])
        if problem.term is not None:
            self._of_term(ds, block, scores)
        if problem.softcap is not None:
            ds = ds * (1 - (scores.capped / problem.softcap) ** 2)
        ds = (problem.scale * ds).to(self.q.dtype)
        dv[:, :, block.keys] += _by_group(p.transpose(-1, -2) @ g, v.shape[1])
        dk[:, :, block.keys] += _by_group(ds.transpose(-1, -2) @ scores.queries, k.shape[1])
        self.dq[:, :, block.queries] += ds @ scores.keys

    def _of_term(self, ds: Tensor, block: PairBlock, scores: _Scores) -> None:
        """Add the gradients of the term, which may read the queries, from ``ds`` of its values."""
        assert self.problem.term is not None
        tables = self.problem.term.tables
        with torch.enable_grad():
            queries = scores.queries.detach().requires_grad_()
            term = self.problem.term.compute(queries, scores.sites)
        if term is None or not term.requires_grad:
            return
        shared = ds.sum_to_size(term.shape).to(term.dtype)
        used = [t for t in tables if t.requires_grad]
        to_queries, *to_tables = torch.autograd.grad(term, (queries, *used), shared, allow_unused=True)
        if to_queries is not None:
            self.dq[:, :, block.queries] += to_queries
        for table, more in zip(used, to_tables, strict=True):
            if more is not None:
                self.of_tables[[t is table for t in tables].index(True)] += more


def _repeated(t: Tensor, heads: int) -> Tensor:
    """Repeat each of G key/value heads (B, G, m, D) for the query heads that use it, (B, H, m, D)."""
    return t if t.shape[1] == heads else t.repeat_interleave(heads // t.shape[1], 1)


def _by_group(t: Tensor, groups: int) -> Tensor:
    """Add up what H query heads give to the key/value head that they use, (B, H, m, D) -> (B, G, m, D)."""
    return t if t.shape[1] == groups else t.unflatten(1, (groups, -1)).sum(2)
