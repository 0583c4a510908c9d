"""Spec of attention to a coarser grid of keys and values."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from qkv.spec.branches import HeadedAttention
from qkv.spec.errors import Problem
from qkv.spec.models.growth import DENSE, Growth
from qkv.spec.parts import LayerNorm, Norm


class ReducedAttention(HeadedAttention, kind="reduced_attention"):
    """Attention to keys and values of norm(W * x), a convolution of ``ratio`` positions along each axis (PVT, 2021).

    Queries are of all positions, keys and values of blocks of ``ratio``^axes positions, which do not overlap: scores
    cost O(N² / ratio^axes). Positions at the end of an axis that do not fill a block are not read; positions before
    the grid, such as a class token, are read as they are (Wang et al. 2021).
    """

    ratio: int = Field(default=2, gt=1, le=4096, description="positions of a block along each axis")
    bias: bool = Field(default=True, description="bias of queries, keys and values")
    norm: Norm = Field(default=LayerNorm(), description="norm of the blocks")
    axes: int | None = Field(default=None, gt=0, le=3, description="axes of the grid; default: those of the positions")

    @property
    def growth(self) -> Growth:
        return DENSE

    @property
    def causal(self) -> bool:
        return False

    def sized_for(self, positions: int, grid: tuple[int, ...] | None) -> Self:
        return self if grid is None or self.axes else self.changed(axes=len(grid))

    def problems(self) -> list[Problem]:
        if not self.norm.over_batch:
            return []
        return [Problem(("norm",), "each block is normalised separately; use layer_norm, rms_norm or none")]

    def canonical(self, width: int) -> Self:
        return super().canonical(width).changed(axes=None)
