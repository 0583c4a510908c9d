"""Spec of feed-forward networks with a convolution of each feature over neighbours on a grid."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from qkv.spec.branches import Branch
from qkv.spec.errors import Problem
from qkv.spec.models.growth import NEAR, Growth
from qkv.spec.parts import Activation, NoNorm, Norm


class ConvolvedFeedForward(Branch, kind="convolved_feed_forward"):
    """Feed-forward network with a depthwise convolution c over ``size`` neighbours along each axis.

        place: hidden   W2 φ(c(W1 x + b1)) + b2            (PVT v2, Wang et al. 2022; SegFormer, Xie et al. 2021)
        place: input    W2 φ(W1 norm(c(x)) + b1) + b2      (ConvNeXt, Liu et al. 2022)

    Zeros surround the grid; positions before it are not convolved. ``response_norm``: after φ, h becomes
    w ⊙ h ⊙ n + b + h, with n the norm of each feature over the row's positions, divided by the mean of these norms
    over the features (ConvNeXt V2, Woo et al. 2023).
    """

    hidden: int | None = Field(default=None, gt=0, description="default: 4 width")
    size: int = Field(default=3, gt=0, le=255, description="positions of the convolution along each axis, odd")
    place: Literal["hidden", "input"] = "hidden"
    activation: Activation = "gelu"
    norm: Norm = Field(default=NoNorm(), description="norm after a convolution of the input")
    response_norm: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)
    axes: int | None = Field(default=None, gt=0, le=3, description="axes of the grid; default: those of the positions")

    @property
    def growth(self) -> Growth:
        return NEAR

    @property
    def causal(self) -> bool:
        return False

    def hidden_at(self, width: int) -> int:
        """Return the number of hidden features in a model of ``width`` features."""
        return self.hidden or 4 * width

    def sized_for(self, positions: int, grid: tuple[int, ...] | None) -> Self:
        return self if grid is None or self.axes else self.changed(axes=len(grid))

    def canonical(self, width: int) -> Self:
        return self.changed(hidden=self.hidden_at(width), dropout=0.0, axes=None)

    def problems(self) -> list[Problem]:
        if self.size % 2 == 0:
            return [Problem(("size",), f"{self.size} given, but a convolution around a position has an odd size")]
        if self.place == "hidden" and not self.norm.identity:
            return [Problem(("norm",), "this norm follows a convolution of the input; leave it out, or set place")]
        if self.norm.over_batch:
            return [Problem(("norm",), "each vector is normalised separately; use layer_norm, rms_norm or none")]
        return []
