"""Spec of focal modulation."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from qkv.spec.branches import Branch
from qkv.spec.errors import Problem
from qkv.spec.models.growth import NEAR, Growth
from qkv.spec.parts import NoNorm, Norm


class FocalModulation(Branch, kind="focal_modulation"):
    """Focal modulation: W_o norm(q ⊙ W_c Σ_l g_l ⊙ c_l) (FocalNet, Yang et al. 2022).

    c_0 is a linear map of x, c_l = gelu(depthwise convolution of c_{l-1}), over ``window`` + 2 (l - 1) neighbours along
    each axis, and the last c is gelu of the mean of c_L over the row; q and the gates g are linear maps of x, with one
    number g_l per level. ``mean``: the sum is divided by the number of its terms.
    """

    levels: int = Field(default=2, gt=0, le=16, description="number of convolutions, L")
    window: int = Field(default=3, gt=0, le=255, description="positions of the first convolution along each axis, odd")
    mean: bool = Field(default=False, description="mean of the gated contexts instead of their sum")
    norm: Norm = Field(default=NoNorm(), description="norm of the product, before the last map")
    axes: int | None = Field(default=None, gt=0, le=3, description="axes of the grid; default: those of the positions")

    @property
    def growth(self) -> Growth:
        return NEAR

    @property
    def causal(self) -> bool:
        return False

    def sized_for(self, positions: int, grid: tuple[int, ...] | None) -> Self:
        return self if grid is None or self.axes else self.changed(axes=len(grid))

    def canonical(self, width: int) -> Self:
        return self.changed(axes=None)

    def problems(self) -> list[Problem]:
        if self.window % 2 == 0:
            return [Problem(("window",), f"{self.window} given, but a convolution around a position has an odd size")]
        if self.norm.over_batch:
            return [Problem(("norm",), "each vector is normalised separately; use layer_norm, rms_norm or none")]
        return []
