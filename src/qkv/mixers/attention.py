"""Multi-head, grouped-query and multi-query softmax attention with any mask and any positions."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.layers.branch import State, implements
from qkv.layers.context import Context
from qkv.layers.positions import rope_frequencies
from qkv.layers.relative import build_relative
from qkv.mixers.key_value import KeyValueAttention
from qkv.ops import positions as position_ops
from qkv.ops.at_least_single import single_or_wider
from qkv.ops.attention.choose import attention
from qkv.ops.attention.problem import Problem
from qkv.ops.masks import Sites
from qkv.spec import branches as spec
from qkv.spec.parts import Alibi, Rope


@implements(spec.Attention)
class Attention(KeyValueAttention):
    """concat_h(softmax(Q_h K_g^T / (τ √Dk) + bias, masked) V_g) W_o (Vaswani et al. 2017).

        x (B, N, D) ─ qkv ─┬ q (B, H, N, Dk) ─ rotate ─┐
                           ├ k (B, G, N, Dk) ─ rotate ─┤ state: (B, G, slots, Dk | Dv)
                           └ v (B, G, N, Dv) ──────────┴ attention ─ (B, N, H Dv) ─ output ─ (B, N, D)

    State: all keys and values; for a causal window mask, a ring buffer of the window and the sinks.
    """

    def __init__(self, part: spec.Attention, width: int):
        super().__init__(part, width)
        self.part = part
        self.relative = build_relative(part, width)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q, k, v = self.projected(x, context)
        q, k = self._rotated(q, k, context)
        k, v, state, sites = self.with_past(k, v, context, state)
        out = attention(q, k, v, self._problem(q, sites))
        return self.output(out.transpose(1, 2).flatten(2)), state

    def _rotated(self, q: Tensor, k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Apply RoPE to q and k, if the part has it."""
        rope = self.part.relative
        if not isinstance(rope, Rope):
            return q, k
        cos, sin = context.once(("rope", rope, self.head_dim, q.dtype), lambda: self._rotation(rope, context, single_or_wider(q.dtype)))
        return position_ops.rotate(q, cos, sin), position_ops.rotate(k, cos, sin)

    def _rotation(self, rope: Rope, context: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        frequencies, magnitude = rope_frequencies(rope, spec.rotary_dim(self.head_dim, rope), dtype)
        return position_ops.rotation(context.positions[:, None], frequencies.to(context.positions.device), magnitude)

    def _problem(self, q: Tensor, sites: Sites) -> Problem:
        part = self.part
        dropout = part.dropout if self.training else 0.0
        if self.relative is None:
            return Problem(self.mask, sites, self.scale, self._slopes(q), dropout, top_k=part.top_k, softcap=part.softcap)
        added, values = self.relative.added(q, sites, self.scale), self.relative.values(sites)
        return Problem(self.mask, sites, self.scale, None, dropout, added, part.top_k, values, part.softcap)

    def _slopes(self, q: Tensor) -> Tensor | None:
        alibi = self.part.relative
        if not isinstance(alibi, Alibi):
            return None
        return position_ops.alibi_slopes(self.num_heads, q.device, single_or_wider(q.dtype)) * (self.scale if alibi.scaled else 1.0)
