"""Spec of attention to a fixed number of projected keys (Linformer)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.branches import HeadedAttention
from qkv.spec.mixers.position_matrices import PositionMatrices
from qkv.spec.models.growth import LINEAR, Growth


class Linformer(PositionMatrices, HeadedAttention, kind="linformer"):
    """Linformer: concat_h(softmax(Q_h (E_h K_h)^T / √Dk) F_h V_h) W_o, E and F (k, N) learned (Wang et al. 2020).

    k = ``rank`` mixtures of all positions replace the keys, so that time and memory grow with N k. By ``share``, each
    head has its own E and F, all heads share E and F, or all heads share one matrix for keys and values. Each mixture
    depends on the whole row, so the branch is not causal.
    """

    rank: int = Field(default=128, gt=0, description="number of projected keys that each query reads, k")
    share: Literal["none", "heads", "keys_values"] = Field(
        default="heads",
        description="none: E and F of each head; heads: E and F of all heads; keys_values: E = F of all heads",
    )
    bias: bool = True

    @property
    def growth(self) -> Growth:
        return LINEAR

    @property
    def decoding_advice(self) -> str:
        return "its keys are mixtures of the whole row; use attention, or linear_attention for linear cost"
