"""Attention to a window and, through a gate, to the keys before it with the largest scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qkv.layers.branch import State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, vector
from qkv.mixers.attention.attend import attend
from qkv.mixers.attention.attention import KeyValueAttention
from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Causal, Grid, Mask, Span, Window
from qkv.ops.sparse.retrieval import largest_products
from qkv.spec.mixers import retrieval_attention as spec
from qkv.spec.register import implements
from qkv.system.errors import UserError

SEARCHED = 4096
"""Minimum number of keys for a search by faiss, if the spec selects it; fewer keys are all compared."""


@dataclass(frozen=True)
class Older(Mask):
    """Mask under which keys at least ``distance`` positions before the query are visible."""

    distance: int

    def allowed(self, grid: Grid) -> Tensor:
        return grid.key <= grid.query - self.distance

    def may_see(self, span: Span) -> bool:
        return span.first_key <= span.last_query - self.distance

    def sees_all(self, span: Span) -> bool:
        return span.last_key <= span.first_query - self.distance


@implements(spec.RetrievalAttention)
class RetrievalAttention(KeyValueAttention):
    """Local and retrieving attention with shared projections (Wu et al. 2022); see the spec for the equations.

        x (B, N, D) ─ qkv ─ q, k, v ─┬─ the last W keys ───────────── local ─┐
                                     └─ the k best of all older keys ── far ─┴─ gate ─ output ─ (B, N, D)

    State: all keys and values. In decoding, faiss searches a large memory if the spec selects it.
    """

    def __init__(self, part: spec.RetrievalAttention, width: int):
        super().__init__(part, width)
        self.part = part
        self.gate = nn.Parameter(torch.zeros(part.num_heads))

    def layouts(self) -> Layouts:
        return {**super().layouts(), "gate": vector("q", self.num_heads, 1)}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q, k, v = self.projected(x, context)
        k, v, state, sites = self.with_past(k, v, context, state)
        dropout = self.part.dropout if self.training else 0.0
        near = AttentionProblem(Causal() & Window(self.part.window), sites, self.scale, dropout=dropout)
        local = attend(self, (q, k, v), near, context)
        far = AttentionProblem(
            Older(self.part.window), sites, self.scale, dropout=dropout, top_k=self.part.num_retrieved
        )
        counts = self._searched(context) if state is not None else None
        remote = attention(q, k, v, far) if counts is None else self._attend_to_retrieved(q, k, v, far, counts)
        share = (sites.query >= self.part.window).to(q.dtype)[:, None, :, None]
        share = share * self.gate.sigmoid().to(q.dtype)[:, None, None]
        out = self.offer(context.tap, "head_outputs", local + share * (remote - local))
        return self.output(out.transpose(1, 2).flatten(2)), state

    def _searched(self, context: Context) -> list[int] | None:
        """Return how many of its first keys faiss searches for each row: the keys older than every query's window.

        None if all keys are compared.
        """
        if self.part.search != "faiss" or context.arrival is None or torch.is_grad_enabled():
            return None
        counts = [max(0, past - self.part.window + 1) for past in context.arrival.past]
        return counts if counts and max(counts) >= SEARCHED else None

    def _attend_to_retrieved(self, q: Tensor, k: Tensor, v: Tensor, far: AttentionProblem, counts: list[int]) -> Tensor:
        """Attend to the retrieved keys: the best of the first ``counts`` keys by faiss, and of the later keys.

        The later keys are all compared.
        """
        heads, most = q.shape[1], far.top_k or 1
        try:
            places = largest_products(q, k, counts, most)
        except ImportError:
            raise UserError(
                "search: 'faiss' needs the library faiss, which is not installed; pip install 'qkv[retrieval]', or use "
                "'exact'"
            ) from None
        first = min(counts)
        k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
        old = [t[:, :, None].expand(-1, -1, q.shape[2], -1, -1) for t in (k, v)]
        index = places.clamp(min=0)[..., None]
        old_k, old_v = (t.gather(3, index.expand(*places.shape, t.shape[-1])) for t in old)
        visible = far.sites.part(slice(None), slice(first, None)).visible(far.mask, heads)
        later = far.sites.key[:, None, None, first:] >= torch.tensor(counts, device=q.device)[:, None, None, None]
        scores = torch.cat(
            (
                ((q[..., None, :] @ old_k.transpose(-1, -2))[..., 0, :]).masked_fill(places < 0, -torch.inf),
                (q @ k[:, :, first:].transpose(-1, -2)).masked_fill(~(visible & later), -torch.inf),
            ),
            -1,
        )
        best, chosen = (scores * self.scale).topk(min(most, scores.shape[-1]))
        blind = best[..., :1].isinf()
        weights = best.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
        weights = torch.zeros_like(scores).scatter(-1, chosen, weights)
        count = places.shape[-1]
        return (weights[..., None, :count] @ old_v)[..., 0, :] + weights[..., count:] @ v[:, :, first:]
