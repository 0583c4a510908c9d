"""Mixers of neighbouring positions on a grid: the spatial shift, pooling, and MONet's products. Without a grid, the
neighbours are those in the sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.activations import ACTIVATIONS
from qkv.layers.branch import Branch, State
from qkv.layers.context import Context, PositionGrid
from qkv.layers.layout import Layouts, matrix
from qkv.layers.linear import Linear
from qkv.layers.norms import build_norm
from qkv.mixers.whole_rows import each_row
from qkv.ops.neighbours import MOST_AXES, shifted, window_mean
from qkv.spec.errors import UserError
from qkv.spec.mixers import neighbours as spec
from qkv.spec.register import implements


def _grid(context: Context, rows: Tensor) -> PositionGrid:
    """Grid of the positions of ``rows`` (R, M, D): that of the context, or a single axis."""
    return PositionGrid((rows.shape[1],)) if context.grid is None else context.grid


@implements(spec.SpatialShift)
class SpatialShift(Branch):
    """Spatial-shift branch W2 shift(φ(W1 x + b1)) + b2 (S²-MLP, Yu et al. 2021). Bidirectional, stateless.

    x (B, N, D) ─ up ─ φ ─ (B, N, F) ─ shift of 2 groups per axis ─ down ─ (B, N, D)
    """

    causal = False
    rewindable = False

    def __init__(self, part: spec.SpatialShift, width: int):
        super().__init__(part, width)
        hidden = part.hidden_at(width)
        self.up, self.down = Linear(width, hidden), Linear(hidden, width)
        self.activation = ACTIVATIONS[part.activation]

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        def mix(rows: Tensor, real: Tensor | None) -> Tensor:
            return shifted(rows, *_grid(context, rows), real)

        return self.down(each_row(self.activation(self.up(x)), context, mix, self.spec.kind)), state

    def ending(self) -> nn.Module:
        return self.down


@implements(spec.Pooling)
class Pooling(Branch):
    """Pooling: mean of the neighbours minus x (PoolFormer, Yu et al. 2022). Bidirectional, stateless, no weights."""

    causal = False
    rewindable = False

    def __init__(self, part: spec.Pooling, width: int):
        super().__init__(part, width)
        self.size = part.size

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        """Apply the branch. Raises ``UserError`` for a grid of more than three axes."""

        def mix(rows: Tensor, real: Tensor | None) -> Tensor:
            sizes, leading = _grid(context, rows)
            if len(sizes) > MOST_AXES:
                raise UserError(
                    f"{self.spec.kind!r} averages on grids of up to {MOST_AXES} axes, and this one has {len(sizes)}"
                )
            return window_mean(rows, self.size, sizes, leading, real)

        return each_row(x, context, mix, self.spec.kind) - x, state


@implements(spec.MONet)
class MONet(Branch):
    """Mu-layer of MONet: E(norm(A x) ⊙ norm(B2 B1 x) + D x) (Cheng et al. 2024). Stateless; bidirectional if shifted.

    x (B, N, D) ─ input ─┬ A x (B, N, F) ─ shift ─ norm ──────────┐
                         ├ B1 x (B, N, R) ─ shift ─ B2 ─ norm ─── ⊙ ─ + ─ output ─ (B, N, D)
                         └ D x (B, N, F) ─ shift ─────────────────────┘
    """

    rewindable = True

    def __init__(self, part: spec.MONet, width: int):
        super().__init__(part, width)
        hidden, rank = part.sizes(width)
        self.causal = self.rewindable = part.causal
        self.shift, self.pieces = part.shift, (hidden, rank, hidden)
        self.input, self.expand = Linear(width, sum(self.pieces)), Linear(rank, hidden)
        self.norm, self.expand_norm = build_norm(part.norm, hidden), build_norm(part.norm, hidden)
        self.output = Linear(hidden, width)

    def layouts(self) -> Layouts:
        hidden, rank, _ = self.pieces
        return {"input": matrix(a=hidden, b=rank, d=hidden)}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        x = self.input(x)
        if self.shift:
            x = each_row(x, context, lambda rows, real: self._shifted(rows, real, context), self.spec.kind)
        a, b, d = x.split(self.pieces, -1)
        return self.output(self.norm(a, context) * self.expand_norm(self.expand(b), context) + d), state

    def _shifted(self, rows: Tensor, real: Tensor | None, context: Context) -> Tensor:
        """Shift the groups of features of A x, B1 x and D x, each by itself."""
        grid = _grid(context, rows)
        return torch.cat([shifted(piece, *grid, real) for piece in rows.split(self.pieces, -1)], -1)

    def ending(self) -> nn.Module:
        return self.output
