"""Common parts of mixers of neighbours on a grid: the grid of a row, and convolutions over one to three axes."""

from __future__ import annotations

from math import prod
from typing import Any

from torch import Tensor, nn

from qkv.layers.context import Context, PositionGrid
from qkv.system.errors import UserError

CONVOLUTIONS: dict[int, type[Any]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
"""Convolutions by the number of axes."""


def grid_of(context: Context, rows: Tensor, axes: int, kind: str) -> PositionGrid:
    """Return the grid of the positions of ``rows`` (R, M, D): that of the context, or a single axis.

    Raises ``UserError`` for a grid of another number of axes.
    """
    grid = PositionGrid((rows.shape[1],)) if context.grid is None else context.grid
    if len(grid.sizes) != axes:
        raise UserError(f"{kind!r} was built for a grid of {axes} axes, and this one has {len(grid.sizes)}; set axes")
    assert grid.leading + prod(grid.sizes) == rows.shape[1]
    return grid
