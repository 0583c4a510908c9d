"""Spec of attention in windows of a grid."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from qkv.spec.base import Part
from qkv.spec.branches import HeadedAttention
from qkv.spec.errors import Problem
from qkv.spec.models.growth import NEAR, Growth


class WindowBias(Part, slot=True):
    """Base class of biases of attention in windows, per head and offset between query and key."""


class NoWindowBias(WindowBias, kind="none"):
    """No bias."""


class TableBias(WindowBias, kind="table"):
    """Learned bias per head and offset (Swin, Liu et al. 2021)."""


class MappedBias(WindowBias, kind="mapped"):
    """Bias 16 σ(f(o)), f an MLP with ReLU and o the offsets on a logarithmic scale (Swin v2, Liu et al. 2022).

    o = sign(p) log2(1 + 8 |p|) / 3, with p = offset / (``trained_window`` - 1).
    """

    hidden: int = Field(default=512, gt=0, description="hidden features of the MLP")
    trained_window: int | None = Field(
        default=None, gt=0, le=4096, description="window whose offsets are scaled to 1; default: the window"
    )


class WindowAttention(HeadedAttention, kind="window_attention"):
    """Attention in windows of M positions along each axis: softmax(Q K^T / √Dk + bias) V in each (Swin, 2021).

    ``shift`` moves the windows by this number of positions towards the end of each axis, unless one window covers the
    axis. Branches with and without a shift in turn connect positions that each alone would separate. On a grid,
    positions that pad the last windows are 0 and visible, as published; in a sequence they are hidden. ``scores:
    cosine``: τ_h cos(q, k), with a learned τ_h ≤ 100 (Swin v2, Liu et al. 2022).
    """

    window: int = Field(default=7, gt=0, le=4096, description="positions of a window along each axis, M")
    shift: int = Field(default=0, ge=0, description="positions by which windows are moved, less than M")
    bias: bool = Field(default=True, description="bias of queries, keys and values")
    key_bias: bool = Field(default=True, description="bias of keys, if bias is true")
    scores: Literal["product", "cosine"] = "product"
    relative: WindowBias = TableBias()
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
        return super().canonical(width).changed(axes=None)

    def problems(self) -> list[Problem]:
        if self.shift < self.window:
            return []
        return [Problem(("shift",), f"{self.shift} given, but it must be less than the window {self.window}")]
