"""Spec of the short convolution between two gates (LFM2)."""

from __future__ import annotations

from pydantic import Field

from qkv.spec.branches import Branch
from qkv.spec.models.growth import NEAR, Growth


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
