"""Attention that leaves most pairs of positions out: by place, or by content."""

from __future__ import annotations

from pydantic import Field

from qkv.spec.branches import Branch, heads_divide
from qkv.spec.errors import Problem


class SparseAttention(Branch):
    """Several heads over a part of the pairs; H heads of Dk features."""

    num_heads: int = Field(default=4, gt=0)
    head_dim: int | None = Field(default=None, gt=0, description="default: width / num_heads")
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def head_width(self, width: int) -> int:
        """Dk at a model width."""
        return self.head_dim or width // self.num_heads

    def width_problems(self, width: int) -> list[Problem]:
        return [] if self.head_dim else heads_divide(width, self.num_heads)


class GlobalLocalAttention(SparseAttention, kind="global_local_attention"):
    """A position sees those up to ``window`` away on both sides, and the global ones; a global position sees all, with queries, keys and
    values of its own maps (Longformer, Beltagy et al. 2020).

    Global are the first ``num_global`` positions of a row or document, such as a classification token; without a number those of each row's
    own prefix, such as a question before its text. Not causal; ``attention`` with ``causal & window(n, sinks=k)`` is.
    """

    window: int = Field(default=256, ge=0, description="how far a position sees to each side; half of Longformer's attention_window")
    num_global: int | None = Field(default=1, gt=0, description="null: as many as the row's prefix is long")
    bias: bool = True

    @property
    def causal(self) -> bool:
        return False

    @property
    def reads_prefix(self) -> bool:
        return self.num_global is None

    @property
    def block(self) -> int:
        """How many queries meet their keys in one product."""
        return max(self.window, 64)
