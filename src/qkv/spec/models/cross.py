"""Specs of branches that read a memory: an encoder's output or another sequence of vectors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.branches import Branch, DotProduct
from qkv.spec.models.growth import DENSE, LINEAR, STORED, Growth


class MemoryBranch(Branch):
    """Base class of branches that read a memory (encoder output, latents) and do not mix positions of the row."""

    reads_memory = True

    @property
    def mixes(self) -> bool:
        return False


class CrossAttention(DotProduct, MemoryBranch, kind="cross_attention"):
    """Cross-attention: concat_h(softmax(Q_h K_g^T / (temperature √Dk)) V_g) W_o (Vaswani et al. 2017).

    Q = x W_q, K = m W_k, V = m W_v with the memory m. K and V are computed once per decoded sequence. ``softcap``
    bounds logits to (-c, c), as in ``attention`` (T5Gemma, 2025).
    """

    softcap: float | None = Field(default=None, gt=0, description="c: logits s become c · tanh(s / c)")
    key_bias: bool = Field(default=True, description="bias of keys, if bias is true (Whisper: false)")

    @property
    def biases_apart(self) -> bool:
        return self.bias and not self.key_bias

    @property
    def growth(self) -> Growth:
        return DENSE


class AdditiveAttention(MemoryBranch, kind="additive_attention"):
    """Additive attention: Σ_j softmax_j(v · tanh(W_q x_i + W_k m_j)) m_j, then a linear map (Bahdanau et al. 2015).

    m is the memory.
    """

    hidden: int | None = Field(default=None, gt=0, description="features inside tanh; default: width")

    @property
    def growth(self) -> Growth:
        return STORED


class FixedContext(MemoryBranch, kind="fixed_context"):
    """Pooled memory c at every position: W c + b (encoder–decoder without attention, Cho et al. 2014)."""

    pooling: Literal["first", "last", "mean", "max"] = Field(default="last", description="pooling of the memory to c")

    @property
    def growth(self) -> Growth:
        return LINEAR
