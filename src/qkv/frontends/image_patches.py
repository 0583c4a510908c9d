"""Front end for image patches that a model generates one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.frontends.placed import PlacedFrontend
from qkv.layers.context import Context
from qkv.layers.linear.linear import Linear
from qkv.layers.signal import Signal
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.image_sequences import PatchVectors
from qkv.system.errors import UserError


@implements(PatchVectors)
class PatchVectorFrontend(PlacedFrontend):
    """Front end for patches (B, N, F + S), F pixel values and a one-hot start vector of S -> vectors (B, N, D)."""

    part: PatchVectors

    def __init__(self, part: PatchVectors, stack: Stack, width: int, table: object = None):
        if part.features is None or part.starts is None:
            raise UserError(
                "model.frontend.features and model.frontend.starts are not set: set them, or open the data, whose "
                "processor sets them"
            )
        super().__init__(part, stack, width)
        self.width_read = part.features + part.starts
        self.map = Linear(self.width_read, part.vector_width(width))

    def check(self, signal: Signal) -> None:
        values = signal.values
        if values.dim() != 3 or values.shape[2] != self.width_read or not values.is_floating_point():
            shape, kind = tuple(values.shape), str(values.dtype).removeprefix("torch.")
            raise UserError(
                f"patches have the shape {shape} and the type {kind}, and the model reads numbers "
                f"(B, N, {self.width_read}): the pixels of each patch, and its one-hot start vector"
            )

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randn(rows, length, self.width_read, generator=generator))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        return self.placed(self.map(signal.values.to(self.map.weight.dtype)), context)
