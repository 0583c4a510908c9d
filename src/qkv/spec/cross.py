"""Specs of branches that read a memory: an encoder's output or another sequence of vectors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.branches import Branch, DotProduct


class MemoryBranch(Branch):
    """Base class of branches that read a memory (encoder output, latents) and do not mix positions of the row."""

    reads_memory = True

    @property
    def mixes(self) -> bool:
        return False


class CrossAttention(DotProduct, MemoryBranch, kind="cross_attention"):
    """concat_h(softmax(Q_h K_g^T / (temperature √Dk)) V_g) W_o, Q = x W_q, K = m W_k, V = m W_v (Vaswani et al. 2017).

    m is the memory. K and V are computed once per decoded sequence.
    """


class AdditiveAttention(MemoryBranch, kind="additive_attention"):
    """Σ_j softmax_j(v · tanh(W_q x_i + W_k m_j)) m_j, then a linear map (Bahdanau et al. 2015)."""

    hidden: int | None = Field(default=None, gt=0, description="features inside tanh; default: width")


class FixedContext(MemoryBranch, kind="fixed_context"):
    """W c + b at every position, with c the pooled memory (encoder–decoder without attention, Cho et al. 2014)."""

    pooling: Literal["first", "last", "mean", "max"] = Field(default="last", description="pooling of the memory to c")
