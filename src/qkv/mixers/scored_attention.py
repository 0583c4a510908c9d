"""Attention under a mask whose scores are joined by something learned: what such mixers share, their state included."""

from __future__ import annotations

from torch import Tensor

from qkv.layers.branch import State
from qkv.layers.context import Context
from qkv.mixers.key_value import KeyValueAttention
from qkv.ops.attention.choose import attention
from qkv.ops.attention.problem import Problem
from qkv.ops.masks import Sites
from qkv.spec.branches import MaskedAttention


class ScoredAttention(KeyValueAttention):
    """concat_h(softmax(scale · Q_h K_g^T + what ``scored`` adds, masked) V_g) W_o.

        x (B, N, D) ─ qkv ─┬ q (B, H, N, Dk) ─ scored ┐
                           ├ k (B, G, N, Dk) ─────────┤ state: (B, G, slots, Dk | Dv)
                           └ v (B, G, N, Dv) ─────────┴ attention ─ (B, N, H Dv) ─ output ─ (B, N, D)

    The state holds every key and value, or, if the mask is a causal window, a ring of the last ``size`` and the sinks.
    """

    def __init__(self, part: MaskedAttention, width: int, terms: int = 1):
        super().__init__(part, width, terms)
        self.part = part

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q, k, v = self.projected(x, context)
        k, v, state, sites = self.met(k, v, context, state)
        q, added = self.scored(q, k, sites, context)
        dropout = self.part.dropout if self.training else 0.0
        out = attention(q, k, v, Problem(self.mask, sites, self.scale, dropout=dropout, added=added))
        return self.output(out.transpose(1, 2).flatten(2)), state

    def scored(self, q: Tensor, k: Tensor, sites: Sites, context: Context) -> tuple[Tensor, Tensor]:
        """(the queries that meet the keys (B, H, N, Dk), what joins the scaled scores (B, H, N, M)). k (B, G, M, Dk)."""
        raise NotImplementedError
