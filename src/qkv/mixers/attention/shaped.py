"""Shaped attention: a weighted sum of the output of attention, the query position's own value and the mean value."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins.uniform import uniform


class Shape(nn.Module):
    """Weights α_h I + β_h P_h - γ_h U of shaped attention, U uniform over the visible keys; initially α = β = γ = 1.

    He & Hofmann 2024 (shaped attention, Noci et al. 2023).
    """

    def __init__(self, num_heads: int):
        super().__init__()
        self.itself, self.attended, self.uniform = (nn.Parameter(torch.ones(num_heads)) for _ in range(3))

    def forward(self, out: Tensor, own_values: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
        """Return α own + β out - γ mean, (B, H, N, Dv); mean: the mean of the visible values.

        out (B, H, N, Dv): output of attention; own (B, G, N, Dv): values at the query positions; v (B, G, M, Dv): all
        values.
        """
        groups = self.itself.shape[0] // v.shape[1]
        a, b, c = (gain.to(out.dtype)[:, None, None] for gain in (self.itself, self.attended, self.uniform))
        own_values, mean = (
            t.repeat_interleave(groups, 1) if groups > 1 else t for t in (own_values, uniform(v, problem))
        )
        return a * own_values + b * out - c * mean
