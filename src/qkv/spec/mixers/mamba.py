"""Specs of Mamba and RG-LRU: a state for each feature, whose decay depends on the input."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from qkv.spec.branches import Branch
from qkv.spec.errors import Problem
from qkv.spec.models.growth import RECURRENT, Growth
from qkv.spec.parts import Activation, NoNorm, Norm


class Mamba(Branch, kind="mamba"):
    """Mamba: h_i = e^(-δ_i λ) ⊙ h_{i-1} + δ_i x_i b_i, o_i = h_i · c_i + d x_i for each feature (Gu & Dao 2023).

    [x, z] = u W of the input u; x passes a depthwise causal convolution and silu. [r, b, c] = x W_s with r of
    ``step_rank`` features and b and c of ``state_size``, and δ_i = softplus(r W_δ + β) per feature; ``norm`` normalises
    r, b and c (Falcon-Mamba and Jamba, 2024). λ > 0 and d are learned per feature. y = (o ⊙ silu(z)) W_o. Causal; the
    state has a fixed size.
    """

    expansion: float = Field(default=2.0, gt=0, description="E / width, with E features of x")
    state_size: int = Field(default=16, gt=0, description="state values per feature, and features of b and c")
    step_rank: int | None = Field(default=None, gt=0, description="features of r; default: width / 16, rounded up")
    kernel_size: int = Field(default=4, gt=0, description="size of the causal convolution; 1: the position itself")
    bias: bool = Field(default=False, description="bias of the input and output projections")
    convolution_bias: bool = Field(default=True, description="bias of the convolution")
    norm: Norm = NoNorm()

    @property
    def growth(self) -> Growth:
        return RECURRENT

    def inner(self, width: int) -> int:
        """Return the number of features of x, E, in a model of ``width`` features."""
        return round(self.expansion * width)

    def rank_at(self, width: int) -> int:
        """Return the number of features of r in a model of ``width`` features."""
        return self.step_rank or -(-width // 16)

    def problems(self) -> list[Problem]:
        if not self.norm.over_batch:
            return []
        return [Problem(("norm",), "batch_norm normalises over positions; use layer_norm, rms_norm or none")]

    def width_problems(self, width: int) -> list[Problem]:
        if self.inner(width):
            return []
        return [Problem(("expansion",), f"{self.expansion:g} times the width {width} is less than one feature")]

    def canonical(self, width: int) -> Self:
        return self.changed(expansion=self.inner(width) / width, step_rank=self.rank_at(width))


class RGLRU(Branch, kind="rg_lru"):
    """RG-LRU: h_i = a_i ⊙ h_{i-1} + √(1 - a_i²) ⊙ g_i ⊙ x_i, a_i = e^(-8 softplus(λ) r_i) (Griffin, De et al. 2024).

    x of E features is linear in the input u and passes a depthwise causal convolution. The gates r_i = σ(x_i W_r + b_r)
    and g_i = σ(x_i W_g + b_g) have block-diagonal matrices of ``num_heads`` blocks; λ is learned per feature. At a
    row's first position √(1 - a²) is replaced by 1. y = (h ⊙ φ(u W_z)) W_o. Causal; the state has a fixed size.
    """

    num_heads: int = Field(default=4, gt=0, description="blocks of the gates' matrices; must divide E")
    hidden: int | None = Field(default=None, gt=0, description="features of x, E; default: width")
    kernel_size: int = Field(default=4, gt=0, description="size of the causal convolution; 1: the position itself")
    activation: Activation = "gelu_tanh"

    @property
    def growth(self) -> Growth:
        return RECURRENT

    def hidden_at(self, width: int) -> int:
        """Return the number of features of x, E, in a model of ``width`` features."""
        return self.hidden or width

    def width_problems(self, width: int) -> list[Problem]:
        if self.hidden_at(width) % self.num_heads == 0:
            return []
        return [Problem(("num_heads",), f"{self.num_heads} blocks do not divide {self.hidden_at(width)} features")]

    def canonical(self, width: int) -> Self:
        return self.changed(hidden=self.hidden_at(width))
