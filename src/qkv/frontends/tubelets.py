"""Front end for video: tubelets."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.frontends.placed import PlacedFrontend, check_pixels
from qkv.layers.context import Context, PositionGrid
from qkv.layers.layout import Layouts
from qkv.layers.linear.linear import Linear
from qkv.layers.signal import Signal
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.video import Tubelets
from qkv.system.errors import UserError


@implements(Tubelets)
class TubeletFrontend(PlacedFrontend):
    """Front end for video: pixels (B, T, C, H, W) -> vectors (B, N, D), N = (T / d) (H / P) (W / P).

    x_i = W block_i + b for blocks of d frames × P × P pixels in row-major order: a 3-D convolution with stride equal to
    kernel size. Position vectors, norm and dropout follow.
    """

    part: Tubelets

    def __init__(self, part: Tubelets, stack: Stack, width: int, table: object = None):
        if part.grid is None or part.channels is None:
            raise UserError(
                "model.frontend.frames, height, width and channels are not set: set them, or open the data, "
                "whose processor sets them"
            )
        super().__init__(part, stack, width)
        self.map = Linear(part.depth * part.channels * part.patch**2, part.vector_width(width))

    def layouts(self) -> Layouts:
        assert self.part.grid is not None
        return self.position_layouts(PositionGrid(self.part.grid))

    def initialise(self, std: float) -> None:
        """Initialise the tubelet map by Xavier, its bias to 0."""
        nn.init.xavier_uniform_(self.map.weight)
        nn.init.zeros_(self.map.bias)  # type: ignore[arg-type]

    def check(self, signal: Signal) -> None:
        part, sizes = self.part, {"frames": self.part.frames, "channels": self.part.channels}
        check_pixels(signal.values, "clips", **sizes, height=part.height, width=part.width)

    def count(self, signal: Signal) -> int:
        assert self.part.num_positions is not None
        return self.part.num_positions

    def grid(self, signal: Signal) -> PositionGrid:
        assert self.part.grid is not None
        return PositionGrid(self.part.grid)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        part = self.part
        shape = rows, part.frames or 1, part.channels or 1, part.height or 1, part.width or 1
        return Signal(torch.randn(shape, generator=generator))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        assert self.part.grid is not None
        (frames, rows, columns), depth, patch = self.part.grid, self.part.depth, self.part.patch
        pixels = signal.values[:, : frames * depth, :, : rows * patch, : columns * patch]
        blocks = pixels.unflatten(4, (columns, patch)).unflatten(3, (rows, patch)).unflatten(1, (frames, depth))
        # (B, T', d, C, H', P, W', P) -> (B, T', H', W', d, C, P, P)
        blocks = blocks.permute(0, 1, 4, 6, 2, 3, 5, 7).flatten(4).flatten(1, 3)
        return self.placed(self.map(blocks.to(self.map.weight.dtype)), context)
