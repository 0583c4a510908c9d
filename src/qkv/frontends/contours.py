"""Front end for the points of contours."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.frontends.placed import PlacedFrontend
from qkv.layers.context import Context
from qkv.layers.linear.linear import Linear
from qkv.layers.signal import Signal
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.contours import COLUMNS, ContourPoints
from qkv.system.errors import UserError


@implements(ContourPoints)
class ContourFrontend(PlacedFrontend):
    """Front end for contour points (B, N, 3): W (x, y, first) + b, with position vectors -> vectors (B, N, D)."""

    part: ContourPoints

    def __init__(self, part: ContourPoints, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack, width)
        self.map = Linear(COLUMNS, part.vector_width(width))

    def check(self, signal: Signal) -> None:
        shape, dtype = tuple(signal.values.shape), str(signal.values.dtype).removeprefix("torch.")
        if len(shape) != 3 or shape[2] != COLUMNS or not signal.values.is_floating_point():
            raise UserError(f"points are {dtype} of the shape {shape}; give floats (rows, points, {COLUMNS})")

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randn(rows, self.part.points or length, COLUMNS, generator=generator))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        return self.placed(self.map(signal.values.to(self.map.weight.dtype)), context)
