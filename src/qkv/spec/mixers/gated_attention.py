"""Specs of the gated attention unit and of its mixed chunk attention (FLASH)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from qkv.spec.branches import Branch, rotated_pairs
from qkv.spec.errors import Problem
from qkv.spec.models.growth import CHUNKED, LINEAR, STORED, Growth


class GatedAttention(Branch):
    """Base class of gated attention units: gate u and values v of E features, one head with keys of ``key_dim``."""

    hidden: int | None = Field(default=None, gt=0, description="features of gate and of value, E; default: 2 width")
    key_dim: int = Field(default=128, gt=0, description="features per query and key, S")
    base: float | None = Field(default=10000.0, gt=1, description="base of the rotation (RoPE); none: no rotation")
    mask: Literal["causal", "full"] = Field(default="causal", description="full: all positions of a row; not causal")
    bias: bool = True

    @property
    def causal(self) -> bool:
        return self.mask == "causal"

    def hidden_at(self, width: int) -> int:
        """Return the number of features of the gate and of a value, E, in a model of ``width`` features."""
        return self.hidden or 2 * width

    def extrapolates(self, length: int) -> bool:
        return self.base is None

    def problems(self) -> list[Problem]:
        return [] if self.base is None else rotated_pairs("key_dim", "a key", self.key_dim)

    def canonical(self, width: int) -> Self:
        return self.changed(hidden=self.hidden_at(width))


class GAU(GatedAttention, kind="gau"):
    """Gated attention unit: (u ⊙ o) W_o, o_i = 1/n_i Σ_j relu(q_i · k_j / √S)² v_j (GAU, Hua et al. 2022).

    [u, v, z] = silu(x W); q and k are z with a scale and an offset per feature, then rotated. n_i: number of positions
    seen by i, so that decoding, which does not know the length of the text, computes the same. One branch is a whole
    layer; it needs no feed-forward branch.
    """

    @property
    def growth(self) -> Growth:
        return STORED


class MixedChunkAttention(GatedAttention, kind="mixed_chunk_attention"):
    """Gated attention unit with mixed chunk attention: quadratic within a chunk, linear across chunks (FLASH).

    o_i = 1/m_i Σ_{j in i's chunk} relu(q_i · k_j / √S)² v_j + 1/l_i Σ_{j in earlier chunks} (q'_i · k'_j / √S) v_j;
    without the causal mask the second sum is over all chunks, i's included. m_i, l_i: number of positions in each sum.
    q, k, q', k' are z with four scales and offsets (Hua et al. 2022). Time is linear in the length, and the state has a
    fixed size.
    """

    chunk: int = Field(default=256, gt=0, description="positions per chunk")

    @property
    def growth(self) -> Growth:
        return CHUNKED if self.causal else LINEAR
