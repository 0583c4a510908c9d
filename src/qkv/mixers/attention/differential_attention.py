"""Differential attention: differences of the outputs of pairs of heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, from_heads
from qkv.layers.relative import build_relative
from qkv.mixers.attention.attend import attend
from qkv.mixers.attention.attention import KeyValueAttention
from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.spec.mixers import latent_attention as spec
from qkv.spec.register import implements

_STD = 0.1
"""Standard deviation of the first vectors of λ, as published."""


@implements(spec.DifferentialAttention)
class DifferentialAttention(KeyValueAttention):
    """Differential attention (Ye et al. 2024); see the spec for the equations.

        x (B, N, D) ─ qkv ─┬ q (B, H, N, Dk) ─ rotate ─┐
                           ├ k (B, G, N, Dk) ─ rotate ─┤ state: (B, G, slots, Dk | Dv)
                           └ v (B, G, N, Dv) ─ pairs ──┴ attention ─ difference ─ norm ─ output ─ (B, N, D)

    Pairs: values of two heads beside each other, (B, G, N, 2 Dv). Difference: (B, H, N, 2 Dv) -> (B, H / 2, N, 2 Dv).
    State: all keys and values; for a causal window mask, a ring buffer of the window and the sinks.
    """

    def __init__(self, part: spec.DifferentialAttention, width: int):
        super().__init__(part, width)
        self.part, self.relative = part, build_relative(part, width)
        vectors = (nn.Parameter(torch.randn(self.head_dim) * _STD) for _ in range(4))
        self.first_query, self.first_key, self.second_query, self.second_key = vectors

    @property
    def only_by_keys(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True unless the rotation depends on the length of a row."""
        return self.relative.by_positions

    def layouts(self) -> Layouts:
        pairs = from_heads(self.num_heads * self.value_dim, 2 * self.value_dim)
        return {**super().layouts(), "output": pairs}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q, k, v = self.projected(x, context)
        q, k = self.relative.rotate(q, k, context)
        keys, values, state, sites = self.with_past(k, v, context, state)
        pairs = torch.cat(values.chunk(2, 1), -1).repeat(1, 2, 1, 1)
        problem = AttentionProblem(self.mask, sites, self.scale, dropout=self.part.dropout if self.training else 0.0)
        first, second = attend(self, (q, keys, pairs), problem, context, self.elsewhere or attention).chunk(2, 1)
        out = F.rms_norm(first - self._factor().to(first.dtype) * second, first.shape[-1:], eps=self.part.eps)
        out = self.offer(context.tap, "head_outputs", (1 - self.part.start) * out)
        return self.output(out.transpose(1, 2).flatten(2)), state

    def _factor(self) -> Tensor:
        """Compute the factor λ of the second head of a pair."""
        first, second = (self.first_query * self.first_key).sum(), (self.second_query * self.second_key).sum()
        return first.exp() - second.exp() + self.part.start
