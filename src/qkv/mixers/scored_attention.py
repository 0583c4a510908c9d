"""Attention under a mask whose scores are joined by something learned: what such mixers share, their state included."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.linear import Linear
from qkv.layers.norms import build_norm
from qkv.mixers.attention import arrival
from qkv.mixers.masks import build_mask
from qkv.ops.attention.choose import attention
from qkv.ops.attention.problem import Problem
from qkv.ops.masks import Sites
from qkv.spec.relative_attention import MaskedAttention
from qkv.state.kinds import KeyValue, append, append_ring, key_value, ring_positions


class ScoredAttention(Branch):
    """concat_h(softmax(scale · Q_h K_g^T + what ``scored`` adds, masked) V_g) W_o.

        x (B, N, D) ─ qkv ─┬ q (B, H, N, Dk) ─ scored ┐
                           ├ k (B, G, N, Dk) ─────────┤ state: (B, G, slots, Dk | Dv)
                           └ v (B, G, N, Dv) ─────────┴ attention ─ (B, N, H Dv) ─ output ─ (B, N, D)

    The state holds every key and value, or, if the mask is a causal window, a ring of the last ``size`` and the sinks.
    """

    def __init__(self, part: MaskedAttention, width: int, terms: int = 1):
        """terms: how many products a score is the sum of; all are divided by √(terms · Dk)."""
        super().__init__(part, width)
        self.part = part
        self.head_dim, self.value_dim = part.dims(width)
        self.kv_heads = part.kv_heads
        self.sizes = (part.num_heads * self.head_dim, part.kv_heads * self.head_dim, part.kv_heads * self.value_dim)
        self.qkv = Linear(width, sum(self.sizes), bias=part.bias)
        self.output = Linear(part.num_heads * self.value_dim, width, bias=part.ends_with_bias)
        self.query_norm = build_norm(part.qk_norm, self.head_dim) if part.norms_heads else None
        self.key_norm = build_norm(part.qk_norm, self.head_dim) if part.norms_heads else None
        self.mask = build_mask(part.mask)
        self.scale = 1.0 / (part.temperature * (terms * self.head_dim) ** 0.5)
        self.causal = part.causal
        self.ring = (part.mask.reach, part.mask.first_visible) if part.causal and part.mask.reach is not None else None
        self.rewindable = self.ring is None

    def init_state(self, batch: int, capacity: int | None = None) -> KeyValue:
        limit = None if self.ring is None else sum(self.ring)
        return key_value(batch, self.part.kv_heads, (self.head_dim, self.value_dim), self.qkv.weight.detach(), (capacity, limit))

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q, k, v = self._projected(x, context)
        if state is None:
            sites = context.once(("sites", self.causal), lambda: self._whole(context))
        else:
            k, v, state, sites = self._remembered(k, v, context, state)
        q, added = self.scored(q, k, sites, context)
        dropout = self.part.dropout if self.training else 0.0
        out = attention(q, k, v, Problem(self.mask, sites, self.scale, dropout=dropout, added=added))
        return self.output(out.transpose(1, 2).flatten(2)), state

    def scored(self, q: Tensor, k: Tensor, sites: Sites, context: Context) -> tuple[Tensor, Tensor]:
        """(the queries that meet the keys (B, H, N, Dk), what joins the scaled scores (B, H, N, M)). k (B, G, M, Dk)."""
        raise NotImplementedError

    def mapped(self, x: Tensor) -> Tensor:
        """Queries, keys and values of all heads side by side, (B, N, (H + G) Dk + G Dv)."""
        return self.qkv(x)

    def _projected(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, N, Dk), k (B, G, N, Dk), v (B, G, N, Dv)."""
        widths = (self.head_dim, self.head_dim, self.value_dim)
        q, k, v = (t.unflatten(-1, (-1, w)).transpose(1, 2) for t, w in zip(self.mapped(x).split(self.sizes, -1), widths, strict=True))
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q, context), self.key_norm(k, context)
        return q, k, v

    def _whole(self, context: Context) -> Sites:
        """Queries and keys are the same positions. Padding on the right is hidden from real queries by a causal mask alone."""
        valid = context.valid
        special = context.segments is not None or context.prefix is not None or context.visible is not None
        if not special and (valid is None or self.causal):
            return Sites(context.positions, context.positions, aligned=True)
        key = context.positions if valid is None else context.positions.masked_fill(~valid, -1)
        return Sites(context.positions, key, context.segments, context.segments, prefix=context.prefix, given=context.visible)

    def _remembered(self, k: Tensor, v: Tensor, context: Context, state: KeyValue) -> tuple[Tensor, Tensor, KeyValue, Sites]:
        """Slots are positions, until the ring of a window is full."""
        came, slots = arrival(context), None if self.ring is None else sum(self.ring)
        if slots is not None and (came.start is None or came.end > slots):
            return self._turned(k, v, context, state)
        state, end = append(state, k, v, came, slots), context.end

        def sites() -> Sites:
            key = torch.arange(end, device=k.device)[None]
            return Sites(context.positions, key, aligned=context.start is not None, prefix=context.prefix)

        return state.keys[:, :, :end], state.values[:, :, :end], state, context.once(("cached", end), sites)

    def _turned(self, k: Tensor, v: Tensor, context: Context, state: KeyValue) -> tuple[Tensor, Tensor, KeyValue, Sites]:
        """The queries see what the ring holds, joined by the new keys."""
        came, ring = arrival(context), self.ring or (1, 0)
        before = ring_positions(came.past, sum(ring), ring)[:, : state.keys.shape[2]]
        new = context.positions if context.valid is None else context.positions.masked_fill(~context.valid, -1)
        keys, values = torch.cat((state.keys, k), 2), torch.cat((state.values, v), 2)
        sites = Sites(context.positions, torch.cat((before, new.expand(before.shape[0], -1)), 1))
        return keys, values, append_ring(state, k, v, came, ring), sites

    def state_bytes(self, length: int, batch: int = 1) -> int:
        kept = length if self.ring is None else min(length, sum(self.ring))
        return batch * kept * self.part.kv_heads * (self.head_dim + self.value_dim) * self.qkv.weight.element_size()

    def ending(self) -> nn.Module:
        return self.output
