"""Attention over ranks by exchanging positions for heads (DeepSpeed-Ulysses, Jacobs et al. 2023).

Rank r holds N / R positions of all H heads. After one exchange of all with all it holds all N positions of H / R heads,
computes their attention as a single process does, and a second exchange returns the outputs:

    q (B, H, N / R, D) -> (B, H / R, N, D)      O (B, H / R, N, Dv) -> (B, H, N / R, Dv)
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.parallel.context.places import Shared
from qkv.system.errors import UserError


class HeadExchange(Shared):
    """Attention of this rank's queries to the keys of all ranks, (q, k, v, problem) -> (B, H, N / R, Dv)."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
        """Compute attention; see ``ops.attention.reference``, with N / R for N and M.

        Raises ``UserError`` if the ranks do not divide the heads.
        """
        heads, size = q.shape[1], self.ranks.size
        if heads % size:
            raise UserError(
                f"{heads} heads cannot be divided among {size} ranks; use as many ranks as divide them, or "
                "parallel.context_by=ring"
            )
        repeats = size // math.gcd(k.shape[1], size)
        k, v = (t if repeats == 1 else t.repeat_interleave(repeats, 1) for t in (k, v))
        mine = slice(self.ranks.rank * heads // size, (self.ranks.rank + 1) * heads // size)
        q, k, v = (self._by_heads(t) for t in (q, k, v))
        return self._by_positions(attention(q, k, v, self._of_heads(q, problem, mine)))

    def _of_heads(self, q: Tensor, problem: AttentionProblem, mine: slice) -> AttentionProblem:
        """Return the problem of the heads ``mine``, with all positions. q (B, H / R, N, Dk)."""
        sites, added = self.places(problem.sites).whole(), None
        if problem.term is not None:
            added = problem.term.compute(q, sites)
            if added is not None and added.shape[1] not in (1, q.shape[1]):
                added = added[:, mine]
        slopes, sink = (None if t is None else t[mine] for t in (problem.slopes, problem.sink))
        return replace(problem, sites=sites, slopes=slopes, sink=sink, added=added, term=None)

    def _by_heads(self, t: Tensor) -> Tensor:
        """Exchange (B, H, N / R, D) for (B, H / R, N, D), positions in the order of the row."""
        order = self.layout.order(t.shape[2]).to(t.device)
        parts = t.unflatten(1, (self.ranks.size, -1)).movedim(1, 0)
        return self.ranks.exchange(parts).movedim(0, 2).flatten(2, 3)[:, :, order]

    def _by_positions(self, t: Tensor) -> Tensor:
        """Exchange (B, H / R, N, D) for (B, H, N / R, D), the inverse of ``_by_heads``."""
        order = self.layout.order(t.shape[2] // self.ranks.size).argsort().to(t.device)
        parts = t[:, :, order].unflatten(2, (self.ranks.size, -1)).movedim(2, 0)
        return self.ranks.exchange(parts).movedim(0, 1).flatten(1, 2)
