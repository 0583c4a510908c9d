"""Front end for images: patches."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from qkv.frontends.placed import PlacedFrontend, check_pixels
from qkv.layers.context import Context, PositionGrid
from qkv.layers.layout import WHOLE, Layouts
from qkv.layers.signal import Signal
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.images import Patches
from qkv.system.errors import UserError


class _Stage(nn.Sequential):
    """One convolutional stage of the stem: (B, C, H, W) -> (B, C', ⌈H / 2⌉, ⌈W / 2⌉)."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
        )


@implements(Patches)
class PatchFrontend(PlacedFrontend):
    """Front end for images: pixels (B, C, H, W) -> vectors (B, N, D), N = (H / P) (W / P) + leading vectors.

    x_i = W patch_i + b with patches of P × P pixels (after the stem, if any) in row-major order, with position vectors,
    norm and dropout. Registers are inserted before the patches after the position vectors are added. Pixel rows and
    columns that do not fill a patch are cropped at the bottom and on the right.
    """

    part: Patches

    def __init__(self, part: Patches, stack: Stack, width: int, table: object = None):
        if part.grid is None or part.channels is None:
            raise UserError(
                "model.frontend.height, width and channels are not set: set them, or open the data, "
                "whose processor sets them"
            )
        super().__init__(part, stack, width)
        channels = (part.channels, *part.stem)
        self.stem = nn.ModuleList(_Stage(a, b) for a, b in pairwise(channels))
        vector_width = part.vector_width(width)
        step = part.stride or part.patch
        self.map = nn.Conv2d(channels[-1], vector_width, part.patch, step, part.padding, bias=part.bias)
        self.first = nn.Parameter(torch.zeros(vector_width)) if part.class_token else None
        self.extra = nn.Parameter(torch.zeros(part.extra_tokens, vector_width)) if part.extra_tokens else None
        self.registers = nn.Parameter(torch.zeros(part.registers, width)) if part.registers else None

    def layouts(self) -> Layouts:
        assert self.part.grid is not None
        return {
            "map": WHOLE,
            "first": WHOLE,
            "extra": WHOLE,
            "registers": WHOLE,
            **self.position_layouts(PositionGrid(self.part.grid, self.part.leading_placed)),
        }

    def initialise(self, std: float) -> None:
        """Initialise the patch map by Xavier, the stem as in He et al. 2015, and leading vectors from N(0, std²)."""
        nn.init.xavier_uniform_(self.map.weight.view(len(self.map.weight), -1))
        if self.map.bias is not None:
            nn.init.zeros_(self.map.bias)
        for stage in self.stem:
            nn.init.kaiming_normal_(stage[0].weight, nonlinearity="relu")  # type: ignore[index]
        for token in (self.first, self.extra, self.registers):
            if token is not None:
                nn.init.normal_(token, std=std)

    def check(self, signal: Signal) -> None:
        part = self.part
        check_pixels(signal.values, "images", channels=part.channels, height=part.height, width=part.width)

    def count(self, signal: Signal) -> int:
        assert self.part.num_positions is not None
        return self.part.num_positions

    def grid(self, signal: Signal) -> PositionGrid:
        assert self.part.grid is not None
        return PositionGrid(self.part.grid, self.part.leading)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        part = self.part
        shape = rows, part.channels or 1, part.height or 1, part.width or 1
        return Signal(torch.randn(shape, generator=generator))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        pixels = signal.values.to(self.map.weight.dtype)
        if self.stem:
            # Channels last is twice as fast on a CPU. `contiguous` would not convert one channel.
            pixels = pixels.clone(memory_format=torch.channels_last)
        for stage in self.stem:
            pixels = stage(pixels)
        x = self.map(pixels).flatten(2).mT
        leading = [token.view(-1, x.shape[2]) for token in (self.first, self.extra) if token is not None]
        if leading:
            x = torch.cat((*(token.to(x.dtype).expand(x.shape[0], -1, -1) for token in leading), x), 1)
        return self.placed(x, context)

    def _joined(self, x: Tensor, context: Context) -> Tensor:
        if self.registers is None:
            return super()._joined(x, context)
        x = super()._joined(x, self._without_registers(context))
        registers = self.registers.to(x.dtype).expand(x.shape[0], -1, -1)
        leading = self.part.leading_placed
        return torch.cat((x[:, :leading], registers, x[:, leading:]), 1)

    def _without_registers(self, context: Context) -> Context:
        """Return the context of the positions that have a position vector."""
        assert self.part.grid is not None
        grid = PositionGrid(self.part.grid, self.part.leading_placed)
        return replace(context, positions=context.positions[:, : self.part.num_placed], grid=grid, memo={})
