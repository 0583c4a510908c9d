"""Spec of attention to a fixed number of projected keys (Linformer)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from qkv.spec.branches import heads_divide
from qkv.spec.errors import Problem
from qkv.spec.growth import LINEAR, Growth
from qkv.spec.mixers.position_matrices import PositionMatrices


class Linformer(PositionMatrices, kind="linformer"):
    """Linformer: concat_h(softmax(Q_h (E_h K_h)^T / √Dk) F_h V_h) W_o, E and F (k, N) learned (Wang et al. 2020).

    k = ``rank`` mixtures of all positions take the place of the keys, so that time and memory grow with N k. E and F
    are of each head, of all heads, or one matrix of all heads for keys and values alike. Each mixture depends on the
    whole row, so it is not causal.
    """

    num_heads: int = Field(default=4, gt=0)
    head_dim: int | None = Field(default=None, gt=0, description="default: width / num_heads")
    rank: int = Field(default=128, gt=0, description="number of projected keys that each query reads, k")
    share: Literal["none", "heads", "keys_values"] = Field(
        default="heads",
        description="none: E and F of each head; heads: E and F of all heads; keys_values: E = F of all heads",
    )
    bias: bool = True
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @property
    def growth(self) -> Growth:
        return LINEAR

    @property
    def decoding_advice(self) -> str:
        return "its keys are mixtures of the whole row; use attention, or linear_attention for linear cost"

    def head_width(self, width: int) -> int:
        """Features per head, Dk, in a model of ``width`` features."""
        return self.head_dim or width // self.num_heads

    def width_problems(self, width: int) -> list[Problem]:
        return [] if self.head_dim else heads_divide(width, self.num_heads)

    def canonical(self, width: int) -> Self:
        return self.changed(head_dim=self.head_width(width), dropout=0.0)
