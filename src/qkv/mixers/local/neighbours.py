"""Mixers of neighbouring positions on a grid: the spatial shift, pooling, and MONet's products.

Without a grid, neighbours are adjacent positions of the sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context, PositionGrid
from qkv.layers.layout import Layouts, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.layers.observable import Points, standard
from qkv.layers.position_wise.activations import ACTIVATIONS
from qkv.mixers.whole_rows import each_row
from qkv.ops.convolution import same_document
from qkv.ops.sparse.neighbours import MOST_AXES, shifted, window_mean
from qkv.spec.mixers import neighbours as spec
from qkv.spec.register import implements
from qkv.state.tail import extended
from qkv.system.errors import UserError


def _grid(context: Context, rows: Tensor) -> PositionGrid:
    """Return the grid of the positions of ``rows`` (R, M, D): the grid of the context, or a single axis."""
    return PositionGrid((rows.shape[1],)) if context.grid is None else context.grid


class Shift(Branch):
    """Base class of branches that shift features between neighbours in all directions, or causally to the next one.

    State, if causal: those features of the last position that are shifted, (B, 1, Σ ⌈pieces / 2⌉).
    """

    rewindable = False

    def __init__(self, part: spec.SpatialShift | spec.MONet, width: int, pieces: tuple[int, ...]):
        """Create the branch. pieces: sizes of the pieces of features, each of which is shifted separately in groups."""
        super().__init__(part, width)
        self.causal, self.pieces = part.causal, pieces
        self.moving = [size - size // 2 for size in pieces]

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        return self.like().detach().new_zeros(batch, 1, sum(self.moving)) if self.causal else ()

    def shift(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        """Return (shifted features (B, N, Σ pieces), next state)."""
        if not self.causal:
            return each_row(x, context, lambda rows, real: self._whole(rows, real, context), self.spec.kind), state
        halves = [piece.tensor_split(2, -1) for piece in x.split(self.pieces, -1)]
        moving = torch.cat([first for first, _ in halves], -1)
        tail = moving.new_zeros(len(x), 1, moving.shape[-1]) if state is None else state
        window, tail = extended(tail, moving, context.lengths)
        before = window[:, : x.shape[1]]
        if context.segments is not None:
            before = before * same_document(context.segments, 1)[..., None]
        moved = before.split(self.moving, -1)
        pairs = ((first, half) for first, (_, half) in zip(moved, halves, strict=True))
        return torch.cat([part for pair in pairs for part in pair], -1), None if state is None else tail

    def _whole(self, rows: Tensor, real: Tensor | None, context: Context) -> Tensor:
        """Shift the feature groups of each piece, one group in each direction."""
        grid = _grid(context, rows)
        return torch.cat([shifted(piece, *grid, real) for piece in rows.split(self.pieces, -1)], -1)

    def state_bytes(self, length: int, batch: int = 1) -> int:
        return batch * sum(self.moving) * self.like().element_size() if self.causal else 0


@implements(spec.SpatialShift)
class SpatialShift(Shift):
    """Spatial-shift branch W2 shift(φ(W1 x + b1)) + b2 (S²-MLP, Yu et al. 2021).

    x (B, N, D) ─ up ─ φ ─ (B, N, F) ─ shift of 2 groups per axis ─ down ─ (B, N, D)
    """

    def __init__(self, part: spec.SpatialShift, width: int):
        hidden = part.hidden_at(width)
        super().__init__(part, width, (hidden,))
        self.up, self.down = Linear(width, hidden), Linear(hidden, width)
        self.activation = ACTIVATIONS[part.activation]

    def points(self) -> Points:
        return {"activation": "vectors after the activation function, before the shift (B, N, F)"}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        hidden = self.offer(context.tap, "activation", self.activation(self.up(x)))
        x, state = self.shift(hidden, context, state)
        return self.down(x), state

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
class MONet(Shift):
    """Mu-layer of MONet: E(norm(A x) ⊙ norm(B2 B1 x) + D x) (Cheng et al. 2024). Stateless without the shift.

    x (B, N, D) ─ input ─┬ A x (B, N, F) ─ shift ─ norm ──────────┐
                         ├ B1 x (B, N, R) ─ shift ─ B2 ─ norm ─── ⊙ ─ + ─ output ─ (B, N, D)
                         └ D x (B, N, F) ─ shift ─────────────────────┘
    """

    def __init__(self, part: spec.MONet, width: int):
        hidden, rank = part.sizes(width)
        super().__init__(part, width, (hidden, rank, hidden))
        self.shifts, self.rewindable = part.shift, not part.shift
        self.moving = self.moving if part.shift else []
        self.input, self.expand = Linear(width, sum(self.pieces)), Linear(rank, hidden)
        self.norm, self.expand_norm = build_norm(part.norm, hidden), build_norm(part.norm, hidden)
        self.output = Linear(hidden, width)

    def layouts(self) -> Layouts:
        hidden, rank, _ = self.pieces
        return {"input": matrix(a=hidden, b=rank, d=hidden)}

    def points(self) -> Points:
        return standard("activation")

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        return super().init_state(batch, capacity) if self.shifts else ()

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        x = self.input(x)
        if self.shifts:
            x, state = self.shift(x, context, state)
        a, b, d = x.split(self.pieces, -1)
        hidden = self.norm(a, context) * self.expand_norm(self.expand(b), context) + d
        return self.output(self.offer(context.tap, "activation", hidden)), state

    def ending(self) -> nn.Module:
        return self.output
