"""Front end for the cells of a table's column."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.frontends.frontend import Frontend
from qkv.layers.context import Context
from qkv.layers.linear.linear import Linear
from qkv.layers.signal import Signal
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.cells import CellVector
from qkv.system.errors import UserError


@implements(CellVector)
class CellFrontend(Frontend):
    """Front end for features of a cell (B, F) -> W f + b, one position, (B, 1, D)."""

    part: CellVector

    def __init__(self, part: CellVector, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack)
        if part.features is None:
            raise UserError("model.frontend.features is not set: set it, or build the model together with its data")
        self.features = part.features
        self.map = Linear(part.features, width)

    def count(self, signal: Signal) -> int:
        return 1

    def check(self, signal: Signal) -> None:
        shape = tuple(signal.values.shape)
        if len(shape) != 2 or shape[1] != self.features or not signal.values.is_floating_point():
            raise UserError(f"cells have the shape {shape}; give floats (rows, {self.features})")

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randn(rows, self.features, generator=generator))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        return self.map(signal.values.to(self.map.weight.dtype))[:, None]
