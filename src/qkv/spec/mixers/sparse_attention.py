"""Specs of sparse attention, by position or by content."""

from __future__ import annotations

from pydantic import Field

from qkv.spec.branches import HeadedAttention
from qkv.spec.models.growth import LINEAR, Growth


class GlobalLocalAttention(HeadedAttention, kind="global_local_attention"):
    """Symmetric window attention with global positions (Longformer, Beltagy et al. 2020). Not causal.

    Local queries attend to keys up to ``window`` away and to global keys. Global queries, with separate projections,
    attend to all keys. The first ``num_global`` positions of a row or document are global, such as a classification
    token; with null, each row's prefix is global, such as a question before its text. For a causal mask use
    ``attention`` with ``causal & window(n, sinks=k)``.
    """

    window: int = Field(
        default=256, ge=0, description="distance visible to each side; half of Longformer's attention_window"
    )
    num_global: int | None = Field(default=1, gt=0, description="number of global positions; null: the row's prefix")
    bias: bool = True

    @property
    def growth(self) -> Growth:
        return LINEAR

    @property
    def causal(self) -> bool:
        return False

    @property
    def reads_prefix(self) -> bool:
        return self.num_global is None

    @property
    def block(self) -> int:
        """Number of queries computed together as one block."""
        return max(self.window, 64)
