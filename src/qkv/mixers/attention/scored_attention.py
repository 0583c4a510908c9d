"""Base class of self-attention with additional score terms."""

from __future__ import annotations

from torch import Tensor

from qkv.layers.branch import State
from qkv.layers.context import Context
from qkv.mixers.attention.attend import attend
from qkv.mixers.attention.attention import KeyValueAttention
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Sites
from qkv.spec.branches import MaskedAttention


class ScoredAttention(KeyValueAttention):
    """Base class of attention concat_h(softmax(scale · Q_h K_g^T + S_h, masked) V_g) W_o, with S_h from ``scored``.

        x (B, N, D) ─ qkv ─┬ q (B, H, N, Dk) ─ scored ┐
                           ├ k (B, G, N, Dk) ─────────┤ state: (B, G, slots, Dk | Dv)
                           └ v (B, G, N, Dv) ─────────┴ attention ─ (B, N, H Dv) ─ output ─ (B, N, D)

    State: all keys and values; for a causal window mask, a ring buffer of the window and the sinks.
    """

    def __init__(self, part: MaskedAttention, width: int, terms: int = 1):
        super().__init__(part, width, terms)
        self.part = part

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q, k, v = self.projected(x, context)
        k, v, state, sites = self.with_past(k, v, context, state)
        q, added = self.terms(x, q, k, sites, context)
        dropout = self.part.dropout if self.training else 0.0
        problem = AttentionProblem(self.mask, sites, self.scale, dropout=dropout, added=added)
        out = self.offer(context.tap, "head_outputs", attend(self, (q, k, v), problem, context))
        return self.output(out.transpose(1, 2).flatten(2)), state

    def terms(self, x: Tensor, q: Tensor, k: Tensor, sites: Sites, context: Context) -> tuple[Tensor, Tensor]:
        """Return ``scored``; for terms that read the input x (B, N, D) too."""
        return self.scored(q, k, sites, context)

    def scored(self, q: Tensor, k: Tensor, sites: Sites, context: Context) -> tuple[Tensor, Tensor]:
        """Return (queries of the dot product (B, H, N, Dk), term added to the scaled scores (B, H, N, M)).

        k (B, G, M, Dk).
        """
        raise NotImplementedError
