"""Attention whose weights are probabilities that hash codes collide (YOSO)."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional as F

from qkv.layers.branch import State
from qkv.layers.context import Context
from qkv.layers.observable import Points, standard
from qkv.mixers.attention.attention import KeyValueAttention
from qkv.mixers.value_convolution import ValueConvolution
from qkv.ops.at_least_single import at_least_single
from qkv.spec.mixers import lsh_attention as spec
from qkv.spec.register import implements


@implements(spec.CollisionAttention)
class CollisionAttention(KeyValueAttention):
    """YOSO: o_i = Σ_j p_ij^τ v_j over visible j, divided by its norm |o_i| (Zeng et al. 2021).

        x (B, N, D) ─ qkv ─┬ q (B, H, N, Dk) ─ unit ─┐
                           ├ k (B, G, N, Dk) ─ unit ─┤ state: (B, G, slots, Dk | Dv)
                           └ v (B, G, N, Dv) ────────┴ Σ_j p_ij^τ v_j ─ unit ─ (B, N, H Dv) ─ output ─ (B, N, D)

    p_ij = 1 - arccos(q_i · k_j) / π. State: all keys and values; for a causal window mask, a ring buffer.
    """

    def __init__(self, part: spec.CollisionAttention, width: int):
        super().__init__(part, width)
        self.part = part
        kernel = part.value_convolution
        self.value_convolution = ValueConvolution(part.num_heads, kernel) if kernel else None

    def points(self) -> Points:
        return standard("q", "k", "v", "weights", "head_outputs")

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q, k, v = self.projected(x, context)
        keys, values, state, sites = self.with_past(k, v, context, state)
        weights = self._weights(q, keys).masked_fill(~sites.visible(self.mask, self.num_heads), 0.0)
        weights = self.offer(context.tap, "weights", weights)
        weights = F.dropout(weights, self.part.dropout, self.training)
        out = F.normalize(weights @ values.repeat_interleave(self._group, 1).to(weights.dtype), dim=-1).to(v.dtype)
        if self.value_convolution is not None:
            out = out + self.value_convolution(v, context)
        out = self.offer(context.tap, "head_outputs", out)
        return self.output(out.transpose(1, 2).flatten(2)), state

    @property
    def _group(self) -> int:
        """Number of query heads that share a key/value head."""
        return self.num_heads // self.kv_heads

    def _weights(self, q: Tensor, k: Tensor) -> Tensor:
        """Compute p^τ (B, H, N, M) of queries (B, H, N, Dk) and keys (B, G, M, Dk), with the spec's gradient."""
        q, k = (F.normalize(at_least_single(part), dim=-1) for part in (q, k.repeat_interleave(self._group, 1)))
        cosines = (q @ k.transpose(-1, -2)).clamp(-1.0, 1.0)
        if self.part.gradient == "exact":
            return (1 - cosines.acos() / math.pi) ** self.part.hash_length
        weights = (1 - cosines.detach().acos() / math.pi) ** self.part.hash_length
        slope = self.part.hash_length / 2 * cosines
        return weights * (1 + (slope - slope.detach()))
