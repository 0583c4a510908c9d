"""Spec of attention to learned keys and values."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.branches import Branch, heads_divide
from qkv.spec.errors import Problem
from qkv.spec.parts import Activation


class MemoryLayer(Branch, kind="memory_layer"):
    """Attention to learned keys K_h and values V_h: Σ_h softmax(x W_h K_h^T / √k) V_h (Sukhbaatar et al. 2019).

    With an activation φ instead of softmax: φ(x W_h K_h^T) V_h; for W_h = I a feed-forward network (Geva et al.
    2021).
    """

    num_slots: int | None = Field(default=None, gt=0, description="slots per head; default: 4 width")
    key_dim: int | None = Field(default=None, gt=0, description="features per key, k; default: width / num_heads")
    num_heads: int = Field(default=1, gt=0)
    activation: Literal["softmax"] | Activation = "softmax"

    @property
    def mixes(self) -> bool:
        return False

    def sizes(self, width: int) -> tuple[int, int]:
        """Return (slots per head, features per key) in a model of ``width`` features."""
        return self.num_slots or 4 * width, self.key_dim or width // self.num_heads

    def width_problems(self, width: int) -> list[Problem]:
        return [] if self.key_dim else heads_divide(width, self.num_heads)
