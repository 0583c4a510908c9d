"""Base class of front ends whose vectors are combined with position vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv.frontends.frontend import Frontend
from qkv.layers.context import Context, PositionGrid
from qkv.layers.layout import Layouts
from qkv.layers.norms import build_norm
from qkv.layers.positions import build_positions
from qkv.ops.dropout import dropout
from qkv.spec.frontends import Placed
from qkv.spec.model import Stack
from qkv.system.errors import UserError


def check_pixels(pixels: Tensor, noun: str, **sizes: int | None) -> None:
    """Raise ``UserError`` unless pixels are floats (B, *``sizes``). ``noun``: for the message, such as "images"."""
    needed = tuple(sizes.values())
    if pixels.dim() != 1 + len(needed) or tuple(pixels.shape[1:]) != needed:
        raise UserError(
            f"{noun} have the shape {tuple(pixels.shape)}, and the model reads (B, {', '.join(sizes)}) = "
            f"(B, {', '.join(map(str, needed))})"
        )
    if not pixels.is_floating_point():
        raise UserError(f"{noun} are {pixels.dtype}, and the model reads standardised pixels; give floats")


class PlacedFrontend(Frontend):
    """Base class of front ends that add or concatenate position vectors, with norm and dropout.

    Subclasses embed the values as vectors of ``part.vector_width(width)`` features and pass them to ``placed``.
    """

    part: Any

    def __init__(self, part: Placed, stack: Stack, width: int):
        super().__init__(part, stack)
        self.norm = build_norm(part.norm, width)
        length = part.num_placed or stack.context_length
        self.positions = build_positions(part.positions, length, part.vector_width(width))

    def position_layouts(self, grid: PositionGrid) -> Layouts:
        """Return the layouts of the position tables for positions on ``grid``, by path below this module."""
        layouts = {} if self.positions is None else self.positions.layouts_on(grid)
        return {f"positions.{name}": layout for name, layout in layouts.items()}

    def placed(self, x: Tensor, context: Context) -> Tensor:
        """Combine the embedded values x with position vectors, then apply norm and dropout -> (B, N, D)."""
        steps = (self._normed, self._joined) if self.part.norm_first else (self._joined, self._normed)
        for step in steps:
            x = step(x, context)
        return dropout(x, self.part.dropout, self.training)

    def _normed(self, x: Tensor, context: Context) -> Tensor:
        return self.norm(x, context)

    def _joined(self, x: Tensor, context: Context) -> Tensor:
        """Combine x with the position vectors, if there are any."""
        if self.positions is None:
            return x
        vectors = self.positions.vectors(context, x.dtype).to(x.dtype)
        return x + vectors if self.part.join == "add" else torch.cat((x, vectors.expand_as(x)), -1)
