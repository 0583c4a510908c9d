"""Several scales of one row: coarser vectors, each after the positions of its window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from qkv.layers.context import Context
from qkv.layers.linear.linear import Linear
from qkv.models.stack.layered import Layered
from qkv.models.stack.segmentation import Segmentation, column, each_of, picked, places_of
from qkv.ops.masks import levels_of
from qkv.spec.models import segmentation as spec
from qkv.spec.register import implements
from qkv.state.arrival import Arrival, Counts


class ScaleState(NamedTuple):
    """Decoding state: state of ``blocks``, and the vectors ``current`` (B, F - 1, D) of the row's current window.

    F is the largest factor; the vectors that are not read yet are 0.
    """

    blocks: Any
    current: Tensor


@implements(spec.Scales)
class Scales(Segmentation):
    """Several scales of one row; see the spec for the equations.

        x (B, N, D) ─┬──────────────────────────────┐
                     └─ windows (B, N / F, D) ─ W, b ─┴─ in order of time (B, Σ N / F, D) ─ blocks, norm ─ y (B, N, D)

    A call with a state reads the vectors of windows that end in it, with those of earlier calls.
    """

    part: spec.Scales

    def __init__(self, part: spec.Scales, width: int):
        super().__init__(part)
        self.width = width
        self.maps = nn.ModuleList(Linear(width, width, bias=True) for _ in part.factors[1:])

    def init_state(self, stack: Layered, batch: int, capacity: int | None) -> ScaleState:
        room = None if capacity is None else self.part.positions_read(capacity)
        like = next(stack.parameters()).detach()
        return ScaleState(stack.begin(batch, room), like.new_zeros(batch, self.part.factors[-1] - 1, self.width))

    def own_bytes(self, length: int, batch: int) -> int:
        numbers = batch * (self.part.factors[-1] - 1) * self.width
        return numbers * next((p.element_size() for p in self.parameters()), 0)

    def read(
        self, x: Tensor, context: Context, stack: Layered, state: ScaleState | None
    ) -> tuple[Tensor, ScaleState | None]:
        if not x.shape[1] or not x.shape[0] or (context.arrival and context.arrival.after == context.arrival.past):
            return x, state
        now = _Call(self.part, *places_of(context, x.shape[1]), x.device)
        values = now.values(None if state is None else state.current, x)
        row = picked(self._levels(values), now.places())
        y, blocks = stack.read(row, now.inside(context, len(x)), None if state is None else state.blocks)
        return picked(y, now.outputs(x.shape[1])), None if state is None else ScaleState(blocks, now.current(values))

    def _levels(self, values: Tensor) -> Tensor:
        """Return the vectors of all levels, one level after the other, of whole windows (B, M, D)."""
        coarse = list[Tensor]()
        for factor, level_map in zip(self.part.factors[1:], self.maps, strict=True):
            windows = values.unflatten(1, (-1, factor))
            coarse.append(level_map(_POOLS[self.part.pool](windows)).to(values.dtype))
        return torch.cat((values, *coarse), 1)


_POOLS = {
    "mean": lambda windows: windows.mean(2),
    "max": lambda windows: windows.amax(2),
    "last": lambda windows: windows[:, :, -1],
}


class _Call:
    """Positions of a call and of the row that the blocks read; lists have one entry per row, or one if all are equal.

    past: positions read before the call.   counts: new positions.   offset: positions of the current window of the
    largest factor that were read before the call.   first: number of vectors of all levels that precede those of the
    call in this window.   taken: number of vectors of all levels that the blocks read in the call.
    """

    def __init__(self, part: spec.Scales, past: Sequence[int], counts: Sequence[int], device: torch.device):
        self.part, self.past, self.device, self.largest = part, past, device, part.factors[-1]
        self.offset = [p % self.largest for p in past]
        self.ends = [j + n for j, n in zip(self.offset, counts, strict=True)]
        self.first = [part.positions_read(j) for j in self.offset]
        self.taken = [part.positions_read(end) - first for end, first in zip(self.ends, self.first, strict=True)]
        self.windows = -(-max(self.ends) // self.largest)

    def values(self, current: Tensor | None, x: Tensor) -> Tensor:
        """Return the vectors (B, M, D) from the start of the current window to the end of a window.

        current (B, F - 1, D): vectors of the current window read before the call; None: a whole row.   x (B, N, D): new
        vectors.
        """
        size = self.windows * self.largest
        if current is None:
            return x if x.shape[1] == size else pad(x, (0, 0, 0, max(0, size - x.shape[1])))[:, :size]
        steps, offset = torch.arange(size, device=self.device), column(self.offset, self.device)
        places = torch.where(steps < offset, steps, current.shape[1] + steps - offset)
        inputs = torch.cat((current, x.to(current.dtype)), 1)
        values = picked(inputs, places.clamp(max=inputs.shape[1] - 1))
        return values.masked_fill((steps >= column(self.ends, self.device))[..., None], 0)

    def places(self) -> Tensor:
        """Return the indices (B or 1, M') of the row's vectors among those of all levels."""
        levels = torch.tensor(levels_of(self.part.factors), device=self.device).repeat(self.windows)
        order = levels.argsort(stable=True).argsort()
        steps = column(self.first, self.device) + torch.arange(max(self.taken), device=self.device)
        return order[steps.clamp(max=len(order) - 1)]

    def inside(self, context: Context, batch: int) -> Context:
        """Return the context of the row of all levels."""
        count = max(self.taken)
        lengths = None if min(self.taken) == count else Counts(each_of(self.taken, batch))
        if context.arrival is None:
            steps = torch.arange(count, device=self.device)[None]
            return Context(steps, None if lengths is None else lengths.tensor(self.device), tap=context.tap)
        past = [self.part.positions_read(p) for p in self.past]
        arrival = Arrival(Counts(each_of(past, batch)), count, lengths, self.device)
        return Context(arrival.positions, arrival.lengths, arrival=arrival, tap=context.tap)

    def outputs(self, count: int) -> Tensor:
        """Return the indices (B or 1, N) of the outputs at ``count`` positions of the call."""
        places = column(self.offset, self.device) + torch.arange(count, device=self.device)
        vectors = sum(places // factor for factor in self.part.factors)
        return (vectors - column(self.first, self.device)).clamp(max=max(self.taken) - 1)  # type: ignore[union-attr]

    def current(self, values: Tensor) -> Tensor:
        """Select from ``values`` (B, M, D) those of the window that is current after the call, (B, F - 1, D)."""
        ends = column(self.ends, self.device)
        places = ends // self.largest * self.largest + torch.arange(self.largest - 1, device=self.device)
        current = picked(values, places.clamp(max=values.shape[1] - 1))
        return current.masked_fill((places >= ends)[..., None], 0)
