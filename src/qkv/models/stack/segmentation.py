"""Base class of segmentations: schemes by which a model's blocks read a row in segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.layers.branch import Branch
from qkv.layers.context import Context
from qkv.layers.layout import Declared
from qkv.models.stack.layered import Layered
from qkv.ops.documents import documents
from qkv.spec.models.segmentation import Segmentation as SegmentationSpec
from qkv.spec.register import implementation
from qkv.state.arrival import Counts
from qkv.state.store import slots_for
from qkv.system.errors import UserError


class Segmentation(Declared):
    """Base class of segmentations, which let the blocks read a row in segments. Constructor: ``cls(part, width)``.

    Subclasses define ``read``, and a decoding state: a tree that contains the state of the blocks in the current
    segment.
    """

    def __init__(self, part: SegmentationSpec):
        super().__init__()
        self.part = part

    @property
    def inner(self) -> Layered | None:
        """Inner stack: blocks that belong to the segmentation itself; None if there are none."""
        return None

    def init_state(self, stack: Layered, batch: int, capacity: int | None) -> Any:
        """Create an empty decoding state of ``batch`` rows of up to ``capacity`` positions; None: unlimited.

        ``stack``: the model.
        """
        raise NotImplementedError

    def state_bytes(self, branches: Sequence[Branch], length: int, batch: int) -> int:
        """Return the bytes of the state of ``batch`` rows after ``length`` positions, with the model's ``branches``."""
        positions = self.part.positions_held(length)
        return self.own_bytes(length, batch) + sum(b.state_bytes(positions, batch) for b in branches)

    def own_bytes(self, length: int, batch: int) -> int:
        """Return the bytes of the state of ``batch`` rows after ``length`` positions, without the model's branches."""
        raise NotImplementedError

    def room(self, length: int) -> int:
        """Return the number of positions that growing buffers have space for when they hold ``length`` positions."""
        return slots_for(length)

    def read(self, x: Tensor, context: Context, stack: Layered, state: Any) -> tuple[Tensor, Any]:
        """Run ``stack`` on rows x (B, N, D) of one document; return (vectors (B, N, D) after its norm, next state)."""
        raise NotImplementedError

    def forward(self, x: Tensor, context: Context, stack: Layered, state: Any = None) -> tuple[Tensor, Any]:
        """Run ``stack`` on x (B, N, D); return (vectors (B, N, D) after its norm, next state; None without a state).

        Each packed document starts a new segment, like each row. Raises ``UserError`` for a table of visible keys.
        """
        if context.visible is not None:
            raise UserError(
                f"a table of visible keys (visible) refers to the whole row, which {self.part.kind!r} reads in "
                "segments; leave it out"
            )
        if context.segments is None:
            return self.read(x, context, stack, state)
        packed = documents(context.segments)
        steps = torch.arange(packed.table.shape[1], device=x.device)[None]
        y, _ = self.read(packed.apart(x), Context(steps, packed.lengths, tap=context.tap), stack, None)
        return packed.together(y), None


def build_segmentation(part: SegmentationSpec, width: int) -> Segmentation:
    """Build the segmentation of ``part`` for blocks of ``width`` features."""
    return implementation(part, "qkv.models")(part, width)


def places_of(context: Context, count: int) -> tuple[list[int], list[int]]:
    """Return (positions read before the call, positions of the call), one entry per row, or one if all are equal."""
    arrival = context.arrival
    if arrival is None:
        counts = [count] if context.lengths is None else Counts.of(context.lengths).tolist()
        return [0] * len(counts), counts
    if arrival.start is not None:
        return [arrival.start], [count]
    return arrival.past.tolist(), [after - past for past, after in zip(arrival.past, arrival.after, strict=True)]


def column(counts: Sequence[int], device: torch.device) -> Tensor:
    """Return a tensor (B, 1) with one number per row, or (1, 1) with one number for all rows."""
    return torch.tensor(counts, device=device)[:, None]


def picked(x: Tensor, places: Tensor) -> Tensor:
    """Gather the vectors of x (B, M, D) at the indices ``places`` (B, N), or (1, N) for all rows: (B, N, D)."""
    if places.shape[0] == 1:
        return x.index_select(1, places[0])
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[2]))


def each_of(counts: Sequence[int], batch: int) -> Sequence[int]:
    """Expand ``counts`` to one number for each of ``batch`` rows."""
    return list(counts) * batch if len(counts) == 1 else counts
