"""Merges of neighbours on a grid, with which the stages of a stack begin: (B, N, D) -> (B, M, E)."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.context import Context, PositionGrid
from qkv.layers.layout import WHOLE, Declared, Layouts
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.layers.positions import build_positions
from qkv.spec.models import merges as spec
from qkv.spec.register import implementation, implements
from qkv.system.errors import UserError

_APART = {"lengths": "padding", "segments": "packed documents", "visible": "a table of visible keys"}


class Merge(Declared):
    """Base class of merges. Constructed as ``cls(part, width)``; ``width``: features D before the merge."""

    def __init__(self, part: spec.Merge, width: int):
        super().__init__()
        self.part = part

    def after(self, context: Context) -> Context:
        """Return the context of the merged positions. Raises ``UserError`` if the positions are not on a grid."""
        return context.once(("merged", id(self)), lambda: self._after(context))

    def _after(self, context: Context) -> Context:
        context.on_grid(spec.AXES, self.part.kind)
        assert context.grid is not None
        wrong = next((name for name in _APART if getattr(context, name) is not None), None)
        if wrong or context.grid.leading:
            what = f"{_APART[wrong]} ({wrong})" if wrong else "positions before the grid"
            raise UserError(f"{self.part.kind!r} merges whole grids and cannot respect {what}; leave it out")
        grid = PositionGrid(self.part.grid_at(context.grid.sizes), self.part.leading)
        steps = torch.arange(grid.leading + prod(grid.sizes), device=context.positions.device)[None]
        return replace(context, positions=steps, grid=grid, arrival=None, types=None, memo={})

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Merge x (B, N, D) on the grid of ``context`` -> (B, M, E)."""
        raise NotImplementedError

    def initialise(self, std: float) -> None:
        """Initialise the weights that are not linear maps or position tables, if there are any."""


@implements(spec.PatchMerging)
class PatchMerging(Merge):
    """Patch merging: concat of s × s neighbours (B, M, s² D) ─ norm ─ linear map ─ (B, M, E) (Liu et al. 2021)."""

    part: spec.PatchMerging

    def __init__(self, part: spec.PatchMerging, width: int):
        super().__init__(part, width)
        joined, out = part.size**spec.AXES * width, part.width_at(width)
        self.norm = build_norm(part.norm, joined if part.norm_first else out)
        self.map = Linear(joined, out, bias=part.bias)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        after = self.after(context)
        assert context.grid is not None
        size, (rows, columns) = self.part.size, context.grid.sizes
        cells = F.pad(x.unflatten(1, (rows, columns)), (0, 0, 0, -columns % size, 0, -rows % size))
        squares = cells.unflatten(2, (-1, size)).unflatten(1, (-1, size))  # (B, R, row, C, column, D)
        joined = squares.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)
        if self.part.norm_first:
            return self.map(self.norm(joined, after))
        return self.norm(self.map(joined), after)


@implements(spec.StridedConvolution)
class StridedConvolution(Merge):
    """Convolution with a stride: norm(W * norm_before(x) + b) and position vectors, (B, N, D) -> (B, M, E)."""

    part: spec.StridedConvolution

    def __init__(self, part: spec.StridedConvolution, width: int):
        super().__init__(part, width)
        out = part.width_at(width)
        self.norm_before, self.norm = build_norm(part.norm_before, width), build_norm(part.norm, out)
        self.map = nn.Conv2d(width, out, part.size, part.stride, part.padding)
        self.first = nn.Parameter(torch.zeros(out)) if part.class_token else None
        self.positions = None
        if not part.positions.absent:
            if part.grid is None:
                raise UserError(f"the grid of {part.kind!r} is unknown without image patches; set grid")
            self.positions = build_positions(part.positions, part.leading + prod(part.grid), out)

    def layouts(self) -> Layouts:
        layouts = {"map": WHOLE, "first": WHOLE}
        if self.positions is None or self.part.grid is None:
            return layouts
        tables = self.positions.layouts_on(PositionGrid(tuple(self.part.grid), self.part.leading))
        return {**layouts, **{f"positions.{name}": layout for name, layout in tables.items()}}

    def initialise(self, std: float) -> None:
        """Initialise the map by Xavier, and the class token from N(0, std²)."""
        nn.init.xavier_uniform_(self.map.weight.view(len(self.map.weight), -1))
        if self.map.bias is not None:
            nn.init.zeros_(self.map.bias)
        if self.first is not None:
            nn.init.normal_(self.first, std=std)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        after = self.after(context)
        assert context.grid is not None
        cells = self.norm_before(x, context).unflatten(1, context.grid.sizes).movedim(-1, 1)
        merged = self.norm(self.map(cells).flatten(2).mT, after)
        if self.first is not None:
            merged = torch.cat((self.first.to(merged.dtype).expand(len(merged), 1, -1), merged), 1)
        if self.positions is None:
            return merged
        return merged + self.positions.vectors(after, merged.dtype).to(merged.dtype)


def build_merge(part: spec.Merge, width: int) -> Merge:
    """Build the merge of ``part`` for vectors of ``width`` features."""
    return implementation(part, "qkv.models")(part, width)
