"""Specs of convolutions with gates: the short one of LFM2, and that of the Conformer."""

from __future__ import annotations

from pydantic import Field

from qkv.spec.branches import Branch
from qkv.spec.models.growth import NEAR, Growth
from qkv.spec.parts import Activation, BatchNorm, Norm


class GatedConvolution(Branch, kind="gated_convolution"):
    """Short convolution between two gates: (c ⊙ Σ_t w_t ⊙ (b ⊙ v)_{i-t}) W_o, t < kernel_size (LFM2, 2025).

    [b, c, v] = x W, each as wide as the model. The convolution is depthwise: each feature has K taps w_t of its own.
    Causal; the state has a fixed size.
    """

    kernel_size: int = Field(default=3, gt=0, description="kernel size of the convolution, K; 1: the position itself")
    bias: bool = Field(default=False, description="bias of both linear maps and of the convolution")

    @property
    def growth(self) -> Growth:
        return NEAR


class ConformerConvolution(Branch, kind="conformer_convolution"):
    """Convolution of the Conformer: φ(norm(Σ_t w_t ⊙ u_{i + t - ⌊K/2⌋})) W_o + b_o, u = v ⊙ σ(g) (Gulati et al. 2020).

    [v, g] = x W + b, each as wide as the model. The convolution is depthwise: each feature has K taps w_t of its own,
    and a bias. Not causal. The batch norm leaves padding out.
    """

    kernel_size: int = Field(default=31, gt=0, le=10_000, description="kernel size of the convolution, K")
    norm: Norm = BatchNorm()
    activation: Activation = "silu"
    bias: bool = Field(default=True, description="bias of both linear maps and of the convolution")

    @property
    def growth(self) -> Growth:
        return NEAR

    @property
    def causal(self) -> bool:
        return False
