"""Base class of the ways in which a model's blocks read a row in segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.layers.branch import Branch
from qkv.layers.context import Context
from qkv.layers.layout import Declared
from qkv.models.layered import Layered
from qkv.ops.documents import documents
from qkv.spec.errors import UserError
from qkv.spec.register import implementation
from qkv.spec.segmentation import Segmentation as SegmentationSpec
from qkv.state.arrival import Counts
from qkv.state.store import slots_for


class Segmentation(Declared):
    """Base class of ways to read a row in segments. Made by ``cls(part, width)``.

    Subclasses define ``read``, and a state: a tree that holds the blocks' state of the current segment.
    """

    def __init__(self, part: SegmentationSpec):
        super().__init__()
        self.part = part

    @property
    def inner(self) -> Layered | None:
        """Stack of blocks of the segmentation itself; None if it has none."""
        return None

    def init_state(self, stack: Layered, batch: int, capacity: int | None) -> Any:
        """Empty state of ``batch`` rows of up to ``capacity`` positions; None: any number. ``stack``: the model's."""
        raise NotImplementedError

    def state_bytes(self, branches: Sequence[Branch], length: int, batch: int) -> int:
        """Bytes of the state of ``batch`` rows after ``length`` positions, with that of the model's ``branches``."""
        return self.own_bytes(length, batch) + sum(b.state_bytes(self.part.row_positions, batch) for b in branches)

    def own_bytes(self, length: int, batch: int) -> int:
        """Bytes of the state of ``batch`` rows after ``length`` positions, without that of the model's branches."""
        raise NotImplementedError

    def room(self, length: int) -> int:
        """Number of positions whose state is as large as that of ``length`` positions with its growing buffers."""
        return slots_for(length)

    def read(self, x: Tensor, context: Context, stack: Layered, state: Any) -> tuple[Tensor, Any]:
        """Return (vectors (B, N, D) after ``stack`` and its norm, next state) for rows x (B, N, D) of one document."""
        raise NotImplementedError

    def forward(self, x: Tensor, context: Context, stack: Layered, state: Any = None) -> tuple[Tensor, Any]:
        """Return (vectors (B, N, D) after ``stack`` and its norm, next state; None without a state).

        A packed document begins a segment, as a row does. Raises ``UserError`` for a table of visible keys.
        """
        if context.visible is not None:
            raise UserError(
                f"a table of visible keys (visible) spans the segments that {self.part.kind!r} reads one after the "
                "other; leave it out"
            )
        if context.segments is None:
            return self.read(x, context, stack, state)
        found = documents(context.segments)
        steps = torch.arange(found.table.shape[1], device=x.device)[None]
        y, _ = self.read(found.apart(x), Context(steps, found.lengths, tap=context.tap), stack, None)
        return found.together(y), None


def build_segmentation(part: SegmentationSpec, width: int) -> Segmentation:
    """Build the way in which blocks of ``width`` features read a row."""
    return implementation(part, "qkv.models")(part, width)


def places_of(context: Context, count: int) -> tuple[list[int], list[int]]:
    """(positions read before the call, positions of the call) of each row, or of all rows if these are equal."""
    arrival = context.arrival
    if arrival is None:
        counts = [count] if context.lengths is None else Counts.of(context.lengths).tolist()
        return [0] * len(counts), counts
    if arrival.start is not None:
        return [arrival.start], [count]
    return arrival.past.tolist(), [after - past for past, after in zip(arrival.past, arrival.after, strict=True)]


def column(counts: Sequence[int], device: torch.device) -> Tensor:
    """Tensor (B, 1) of a number for each row, or (1, 1)."""
    return torch.tensor(counts, device=device)[:, None]


def picked(x: Tensor, places: Tensor) -> Tensor:
    """Vectors of x (B, M, D) at ``places`` (B, N), or (1, N) in all rows: (B, N, D)."""
    if places.shape[0] == 1:
        return x.index_select(1, places[0])
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[2]))


def each_of(counts: Sequence[int], batch: int) -> Sequence[int]:
    """A number for each of ``batch`` rows."""
    return list(counts) * batch if len(counts) == 1 else counts
