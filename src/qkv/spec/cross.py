"""Branches that read a memory: the encoder's output, or any other sequence of vectors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.branches import Branch, DotProduct


class MemoryBranch(Branch):
    """A branch that mixes a memory into each position; positions do not meet each other here."""

    @property
    def mixes(self) -> bool:
        return False

    @property
    def reads_memory(self) -> bool:
        return True


class CrossAttention(DotProduct, MemoryBranch, kind="cross_attention"):
    """Attention whose queries are the positions and whose keys and values are the memory's (Vaswani et al. 2017).

    concat_h(softmax(Q_h K_g^T / (temperature √Dk)) V_g) W_o with Q = x W_q, K = m W_k, V = m W_v; K and V are computed once for each
    sequence that is decoded.
    """


class AdditiveAttention(MemoryBranch, kind="additive_attention"):
    """Σ_j softmax_j(v · tanh(W_q x_i + W_k m_j)) m_j, then a linear map (Bahdanau et al. 2015)."""

    hidden: int | None = Field(default=None, gt=0, description="features inside tanh; default: width")


class FixedContext(MemoryBranch, kind="fixed_context"):
    """W c + b with c one vector for the whole memory, added to every position: what an encoder–decoder had before attention (Cho et al. 2014)."""

    pooling: Literal["first", "last", "mean", "max"] = Field(default="last", description="which vector of the memory, or which mean of it")
