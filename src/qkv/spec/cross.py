"""Branches that read a memory: the encoder's output, or any other sequence of vectors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.branches import Branch, heads_divide
from qkv.spec.errors import Problem


class MemoryBranch(Branch):
    """A branch that mixes a memory into each position; positions do not meet each other here."""

    @property
    def mixes(self) -> bool:
        return False

    @property
    def reads_memory(self) -> bool:
        return True


class CrossAttention(MemoryBranch, kind="cross_attention"):
    """Attention whose queries are the positions and whose keys and values are the memory's (Vaswani et al. 2017).

    concat_h(softmax(Q_h K_g^T / (temperature √Dk)) V_g) W_o with Q = x W_q, K = m W_k, V = m W_v; K and V are computed once for each
    sequence that is decoded.
    """

    num_heads: int = Field(default=4, gt=0)
    num_kv_heads: int | None = Field(default=None, gt=0, description="default: num_heads")
    head_dim: int | None = Field(default=None, gt=0, description="default: width / num_heads")
    value_dim: int | None = Field(default=None, gt=0, description="default: head_dim")
    temperature: float = Field(default=1.0, gt=0)
    bias: bool = True
    qk_norm: bool = Field(default=False, description="RMSNorm of each query and key over its head width")
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @property
    def kv_heads(self) -> int:
        """G, how many heads of keys and values there are."""
        return self.num_kv_heads or self.num_heads

    def dims(self, width: int) -> tuple[int, int]:
        """(Dk, Dv) at a model width."""
        head_dim = self.head_dim or width // self.num_heads
        return head_dim, self.value_dim or head_dim

    def problems(self) -> list[Problem]:
        if self.num_heads % self.kv_heads == 0:
            return []
        return [Problem(("num_kv_heads",), f"{self.kv_heads} K/V heads cannot be shared evenly by {self.num_heads} query heads")]

    def width_problems(self, width: int) -> list[Problem]:
        return [] if self.head_dim else heads_divide(width, self.num_heads)


class AdditiveAttention(MemoryBranch, kind="additive_attention"):
    """Σ_j softmax_j(v · tanh(W_q x_i + W_k m_j)) m_j, then a linear map (Bahdanau et al. 2015)."""

    hidden: int | None = Field(default=None, gt=0, description="features inside tanh; default: width")


class FixedContext(MemoryBranch, kind="fixed_context"):
    """W c + b with c one vector for the whole memory, added to every position: what an encoder–decoder had before attention (Cho et al. 2014)."""

    pooling: Literal["first", "last", "mean", "max"] = Field(default="last", description="which vector of the memory, or which mean of it")
