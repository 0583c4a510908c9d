"""Gated attention unit: one head of squared ReLU attention whose output is gated."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import State
from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Declared, Layouts, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points, standard
from qkv.mixers.attention.attention import KeyValueBranch
from qkv.ops import positions as position_ops
from qkv.ops.at_least_single import single_or_wider
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.gated_attention import squared_relu
from qkv.spec import masks
from qkv.spec.mixers import gated_attention as spec
from qkv.spec.register import implements


class GatedInput(Declared):
    """Input of gated attention units: [u, v, z] = silu(x W + b), and queries and keys z ⊙ γ_m + β_m, rotated.

    γ and β (maps, S) are initially 1 and 0.
    """

    def __init__(self, part: spec.GatedAttention, width: int, maps: int):
        super().__init__()
        hidden, self.base = part.hidden_at(width), part.base
        self.sizes = hidden, hidden, part.key_dim
        self.input = Linear(width, sum(self.sizes), bias=part.bias)
        self.scale = nn.Parameter(torch.ones(maps, part.key_dim))
        self.offset = nn.Parameter(torch.zeros(maps, part.key_dim))

    def layouts(self) -> Layouts:
        gate, value, key = self.sizes
        return {"input": matrix(gate=gate, value=value, key=key), "scale": WHOLE, "offset": WHOLE}

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return gate u (B, N, E), values v (B, N, E) and z (B, N, S)."""
        u, v, z = F.silu(self.input(x)).split(self.sizes, -1)
        return u, v, z

    def maps(self, z: Tensor, positions: Tensor) -> list[Tensor]:
        """Compute queries and keys (B, N, S) from z (B, N, S) at ``positions`` (B or 1, N)."""
        maps = [torch.addcmul(offset, z, scale) for scale, offset in zip(self.scale, self.offset, strict=True)]
        if self.base is None:
            return maps
        frequencies = position_ops.inverse_frequencies(
            self.sizes[2], self.base, positions.device, single_or_wider(z.dtype)
        )
        cos, sin = position_ops.rotation(positions, frequencies)
        return [position_ops.rotate(each, cos, sin) for each in maps]


@implements(spec.GAU)
class GAU(KeyValueBranch):
    """Gated attention unit (Hua et al. 2022); see the spec for the equation.

        x (B, N, D) ─ input ─ silu ─┬ u (B, N, E) ──────────────────────────────┐
                                    ├ v (B, N, E) ─────────┐                    │
                                    └ z (B, N, S) ─ q, k ──┴ squared ReLU ── o ─ ⊙ ─ output ─ (B, N, D)

    State: all keys and values, S + E features per position.
    """

    def __init__(self, part: spec.GAU, width: int):
        mask = masks.Causal() if part.causal else masks.Full()
        super().__init__(part, width, mask, (1, part.key_dim, part.hidden_at(width)))
        self.gated = GatedInput(part, width, 2)
        self.output = Linear(part.hidden_at(width), width, bias=part.bias)

    def points(self) -> Points:
        gate = {"gate": "gate u of the output, after its activation (B, N, E)"}
        return {**standard("v"), **gate, **standard("weights", "activation")}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        u, v, z = self.gated(x)
        u, v = self.offer(context.tap, "gate", u), self.offer(context.tap, "v", v[:, None])
        q, k = self.gated.maps(z, context.positions)
        k, v, state, sites = self.with_past(k[:, None], v, context, state)
        problem = AttentionProblem(self.mask, sites, self.head_dim**-0.5)
        weights = self.offer_computed(context.tap, "weights", lambda: squared_relu.weights(q[:, None], k, problem))
        out = squared_relu.attention(q[:, None], k, v, problem) if weights is None else weights @ v
        return self.output(self.offer(context.tap, "activation", u * out[:, 0])), state

    def ending(self) -> nn.Module:
        return self.output
