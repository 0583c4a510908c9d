"""Specs of merges: neighbouring positions on a grid become one position of a coarser grid, of another width."""

from __future__ import annotations

from math import prod
from typing import Self

from pydantic import Field

from qkv.spec.base import Part, Seq
from qkv.spec.errors import Problem
from qkv.spec.frontends import WIDEST
from qkv.spec.parts import LayerNorm, NoNorm, NoPositions, Norm, Positions, grid_problems

AXES = 2
"""Number of axes of the grids that are merged."""


class Merge(Part, slot=True):
    """Base class of merges before a block: a stage of a model of images begins with one.

    The blocks from there on read the coarser grid, in vectors of ``width`` features.
    """

    width: int | None = Field(
        default=None, gt=0, le=WIDEST, description="features after the merge; default: twice those before"
    )
    norm: Norm = NoNorm()

    @property
    def leading(self) -> int:
        """Number of positions that the merge puts before those of the grid."""
        return 0

    def width_at(self, width: int) -> int:
        """Return the features of a merged position, given ``width`` features before."""
        return self.width or 2 * width

    def grid_at(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes of the axes of the coarser grid."""
        raise NotImplementedError

    def place(self, grid: tuple[int, ...] | None, positions: int) -> tuple[int, tuple[int, ...] | None]:
        """Return (positions of a row, their grid) after the merge; ``positions`` if the grid is not known."""
        if grid is None:
            return positions, None
        coarse = self.grid_at(grid)
        return self.leading + prod(coarse), coarse

    def sized_for(self, grid: tuple[int, ...] | None) -> Self:
        """Return a copy in which sizes that depend on the coarser ``grid`` are filled in."""
        return self

    def problems_at(self, width: int, grid: tuple[int, ...] | None) -> list[Problem]:
        """Return the errors for ``width`` features on ``grid`` before the merge; empty if none."""
        if grid is None or min(self.grid_at(grid)) > 0:
            return []
        sizes = " × ".join(map(str, grid))
        return [Problem(("size",), f"no position of a grid of {sizes} is left; give a smaller size, or fewer merges")]

    def canonical(self, width: int, grid: tuple[int, ...] | None) -> Self:
        """Return an equivalent copy for comparisons, given width and grid before the merge."""
        return self.changed(width=self.width_at(width))


class PatchMerging(Merge, kind="patch_merging"):
    """Patch merging: W norm(concat of ``size`` × ``size`` neighbours), or norm(W concat) (Swin, Liu et al. 2021; 2022).

    Neighbours are concatenated column by column. Rows and columns that do not fill a square are filled up with 0.
    """

    size: int = Field(default=2, gt=1, le=64, description="positions of a square along each axis")
    norm: Norm = LayerNorm()
    norm_first: bool = Field(default=True, description="norm of the concatenated features; false: of the merged ones")
    bias: bool = Field(default=False, description="bias of the linear map W")

    def grid_at(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-(-side // self.size) for side in grid)

    def problems(self) -> list[Problem]:
        return _no_batch(self.norm, "norm")


class StridedConvolution(Merge, kind="strided_convolution"):
    """Convolution with a stride: norm(W * norm_before(x) + b) + positions (PVT, Wang et al. 2021; ConvNeXt, 2022).

    A position reads ``size`` × ``size`` neighbours, ``stride`` apart from the next, of a grid with a border of
    ``padding`` zeros (SegFormer, Xie et al. 2021). ``class_token``: a learned position before the coarser grid (PVT).
    """

    size: int = Field(default=3, gt=0, le=64, description="positions along each axis that a merged position reads")
    stride: int = Field(default=2, gt=0, le=64)
    padding: int = Field(default=1, ge=0, le=64, description="rows and columns of zeros around the grid")
    norm_before: Norm = NoNorm()
    positions: Positions = NoPositions()
    class_token: bool = Field(default=False, description="learned position before the coarser grid")
    grid: Seq[int] | None = Field(
        default=None,
        min_length=2,
        max_length=2,
        description="coarser grid, for learned positions; default: by the data",
    )

    @property
    def leading(self) -> int:
        return int(self.class_token)

    def grid_at(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(max(0, (side + 2 * self.padding - self.size) // self.stride + 1) for side in grid)

    def sized_for(self, grid: tuple[int, ...] | None) -> Self:
        return self if grid is None or self.grid == grid else self.changed(grid=grid)

    def problems(self) -> list[Problem]:
        problems = _no_batch(self.norm, "norm") + _no_batch(self.norm_before, "norm_before")
        if self.positions.leads:
            sentence = f"{self.positions.kind!r} positions are not resampled between stages; use 'learned'"
            problems.append(Problem(("positions",), sentence))
        if self.padding >= self.size:
            problems.append(
                Problem(("padding",), f"{self.padding} given, but it must be less than the size {self.size}")
            )
        return problems + grid_problems(self.positions, AXES, "positions")

    def problems_at(self, width: int, grid: tuple[int, ...] | None) -> list[Problem]:
        inside = self.positions.width_problems(self.width_at(width))
        return super().problems_at(width, grid) + [problem.under("positions") for problem in inside]

    def canonical(self, width: int, grid: tuple[int, ...] | None) -> Self:
        return super().canonical(width, grid).changed(grid=None if grid is None else self.grid_at(grid))


def _no_batch(norm: Norm, field: str) -> list[Problem]:
    if not norm.over_batch:
        return []
    return [Problem((field,), "a merge normalises each vector separately; use layer_norm, rms_norm or none")]
