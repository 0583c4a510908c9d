"""Front end for images of any size: patches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.frontends.frontend import Frontend
from qkv.layers.context import Context, PositionGrid
from qkv.layers.layout import WHOLE, Layouts
from qkv.layers.signal import Signal
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.sizes import SizedPatches
from qkv.system.errors import UserError


@implements(SizedPatches)
class SizedPatchFrontend(Frontend):
    """Front end for images of one size in each call: pixels (B, C, H, W) -> vectors (B, N, D), N = (H / P) (W / P)."""

    part: SizedPatches

    def __init__(self, part: SizedPatches, stack: Stack, width: int, table: object = None):
        if part.channels is None:
            raise UserError("model.frontend.channels is not set: set it, or open the data, whose processor sets it")
        super().__init__(part, stack)
        self.map = nn.Conv2d(part.channels, width, part.patch, part.patch, bias=part.bias)

    def layouts(self) -> Layouts:
        return {"map": WHOLE}

    def initialise(self, std: float) -> None:
        """Initialise the map by Xavier."""
        nn.init.xavier_uniform_(self.map.weight.view(len(self.map.weight), -1))
        if self.map.bias is not None:
            nn.init.zeros_(self.map.bias)

    def check(self, signal: Signal) -> None:
        pixels, part = signal.values, self.part
        fills = pixels.dim() == 4 and not any(side % part.patch for side in pixels.shape[2:])
        if not fills or pixels.shape[1] != part.channels or not pixels.is_floating_point():
            shape, kind = tuple(pixels.shape), str(pixels.dtype).removeprefix("torch.")
            raise UserError(
                f"images have the shape {shape} and the type {kind}, and the model reads numbers (B, {part.channels}, "
                f"height, width), of which the sides are multiples of {part.patch}"
            )

    def count(self, signal: Signal) -> int:
        rows, columns = self.grid(signal).sizes
        return rows * columns

    def grid(self, signal: Signal) -> PositionGrid:
        height, width = signal.values.shape[2:]
        return PositionGrid((height // self.part.patch, width // self.part.patch))

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        side, size = self.part.patch, max(1, length // 4)
        return Signal(torch.randn(rows, self.part.channels or 1, 2 * side, 2 * size * side, generator=generator))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        return self.map(signal.values.to(self.map.weight.dtype)).flatten(2).mT
