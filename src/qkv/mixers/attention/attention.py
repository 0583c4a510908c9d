"""Multi-head, grouped-query and multi-query softmax attention with any mask and any positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, vector
from qkv.layers.relative import build_relative
from qkv.mixers.attention.attend import attend
from qkv.mixers.attention.key_value import KeyValueAttention
from qkv.ops.attention.problem import AttentionProblem
from qkv.ops.attention.twins.uniform import uniform
from qkv.ops.masks import Causal, Sites
from qkv.ops.native import pages
from qkv.spec import branches as spec
from qkv.spec.register import implements
from qkv.state.pages import Paged


class Shape(nn.Module):
    """Weights α_h I + β_h P_h - γ_h U of shaped attention, U uniform over the visible keys; initially α = β = γ = 1.

    He & Hofmann 2024 (shaped attention, Noci et al. 2023).
    """

    def __init__(self, num_heads: int):
        super().__init__()
        self.itself, self.attended, self.uniform = (nn.Parameter(torch.ones(num_heads)) for _ in range(3))

    def forward(self, out: Tensor, own: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
        """Return α own + β out - γ mean, (B, H, N, Dv); mean: the mean of the visible values.

        out (B, H, N, Dv): attention's output; own (B, G, N, Dv): values of the queries; v (B, G, M, Dv): values of all
        keys.
        """
        groups = self.itself.shape[0] // v.shape[1]
        a, b, c = (gain.to(out.dtype)[:, None, None] for gain in (self.itself, self.attended, self.uniform))
        own, mean = (t.repeat_interleave(groups, 1) if groups > 1 else t for t in (own, uniform(v, problem)))
        return a * own + b * out - c * mean


@implements(spec.Attention)
class Attention(KeyValueAttention):
    """Self-attention: concat_h(softmax(Q_h K_g^T / (τ √Dk) + bias, masked) V_g) W_o (Vaswani et al. 2017).

        x (B, N, D) ─ qkv ─┬ q (B, H, N, Dk) ─ rotate ─┐
                           ├ k (B, G, N, Dk) ─ rotate ─┤ state: (B, G, slots, Dk | Dv)
                           └ v (B, G, N, Dv) ──────────┴ attention ─ (B, N, H Dv) ─ output ─ (B, N, D)

    State: all keys and values; for a causal window mask, a ring buffer of the window and the sinks.
    """

    def __init__(self, part: spec.Attention, width: int):
        super().__init__(part, width)
        self.part = part
        self.relative = build_relative(part, width)
        self.sink = nn.Parameter(torch.zeros(part.num_heads)) if part.learned_sink else None
        self.shape = Shape(part.num_heads) if part.shaped else None

    def layouts(self) -> Layouts:
        own = super().layouts()
        return own if self.sink is None else {**own, "sink": vector("q", self.num_heads, 1)}

    @property
    def reads_pages(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True under a causal mask if the kernel of pages supports the score terms, the precision and the device."""
        known = isinstance(self.mask, Causal) and self.relative.only_slopes and self.shape is None
        return known and self.part.top_k is None and pages.available(self.like())

    @property
    def replayable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True under a causal mask, which hides the slots after a position, if no score is left out by ``top_k``."""
        return isinstance(self.mask, Causal) and self.relative.replayable and self.part.top_k is None

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q, k, v = self.projected(x, context)
        q, k = self.relative.rotate(q, k, context)
        if isinstance(state, Paged) and context.tap is None and not self.training and pages.suits(q):
            return self.output(self._in_pages(q, k, v, context, state).transpose(1, 2).flatten(2)), state
        own = v
        k, v, state, sites = self.with_past(k, v, context, state)
        problem = self._problem(q, sites, context)
        out = attend(self, (q, k, v), problem, context)
        if self.shape is not None:
            out = self.shape(out, own, v, problem)
        out = self.offer(context.tap, "head_outputs", out)
        return self.output(out.transpose(1, 2).flatten(2)), state

    def _in_pages(self, q: Tensor, k: Tensor, v: Tensor, context: Context, state: Paged) -> Tensor:
        """Store the new keys and values; return the output (B, H, N, Dv), which reads all of them from the pages."""
        arrival = context.arrival
        assert arrival is not None
        table = pages.PageTable(state.room(arrival), state.sizes.positions)
        how = pages.ScoreTerms(self.scale, self.part.softcap, self.relative.slopes(q, self.scale), self.sink)
        return pages.attention(q, k, v, table, arrival.past, arrival.after, how)

    def _problem(self, q: Tensor, sites: Sites, context: Context) -> AttentionProblem:
        part, relative = self.part, self.relative
        dropout = part.dropout if self.training else 0.0
        bias, values = relative.bias(q, sites, self.scale, context), relative.values(sites)
        return AttentionProblem(
            self.mask,
            sites,
            self.scale,
            relative.slopes(q, self.scale),
            dropout,
            bias,
            part.top_k,
            values,
            part.softcap,
            self.sink,
        )
