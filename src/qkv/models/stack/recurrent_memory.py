"""Recurrent memory: vectors that the blocks read at the start of a segment and write at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Layouts
from qkv.layers.positions import Learned
from qkv.models.stack.layered import Layered
from qkv.models.stack.segmentation import Segmentation, column, each_of, picked, places_of
from qkv.spec.models import segmentation as spec
from qkv.spec.parts import Learned as LearnedSpec
from qkv.spec.register import implements
from qkv.state.arrival import Arrival, Counts
from qkv.state.tree import join, rows


class Carried(NamedTuple):
    """Decoding state: state of ``blocks`` in the current segment, and the memory (B, M, D) that the segment reads."""

    blocks: Any
    memory: Tensor


@implements(spec.RecurrentMemory)
class RecurrentMemory(Segmentation):
    """Recurrent memory transformer (Bulatov et al. 2022); see the spec for the equations.

        x (B, N, D) ─ segments (B, S, D) ─ [m ; segment ; m] (B, M + S + M, D) ─ blocks, norm ─┬─ y (B, S, D)
                           m (B, M, D) ─────┘  └───────────────── of the next segment ─────────┴─ last M

    The blocks run once per segment. Memory is written when a segment is full, and read with the first position of the
    next segment. Without a state, no memory is written at the end of a row. Rows of one batch may be at different
    positions within a segment.
    """

    part: spec.RecurrentMemory

    def __init__(self, part: spec.RecurrentMemory, width: int):
        super().__init__(part)
        self.width, self.vectors = width, Learned(LearnedSpec(), part.num_memory, width)

    def layouts(self) -> Layouts:
        return {"vectors.table": WHOLE}  # not "rows": memory vectors have no order, so tables of other sizes share none

    def init_state(self, stack: Layered, batch: int, capacity: int | None) -> Carried:
        return Carried(stack.begin(batch, self.part.row_positions), self._first(batch).detach().clone())

    def own_bytes(self, length: int, batch: int) -> int:
        return batch * self.vectors.table.nbytes

    def _first(self, batch: int) -> Tensor:
        """Return the learned memory (B, M, D) that the first segment reads."""
        return self.vectors.table.expand(batch, -1, -1)

    def read(self, x: Tensor, context: Context, stack: Layered, state: Carried | None) -> tuple[Tensor, Carried | None]:
        batch, count, _ = x.shape
        past, counts = places_of(context, count)
        blocks, memory = (None, self._first(batch)) if state is None else state
        outputs, segments = list[Tensor](), list(_segments(self.part, past, counts, ends=state is not None))
        for number, now in enumerate(segments):
            if number and self.part.bptt and number % self.part.bptt == 0:
                memory = memory.detach()
            y, blocks = stack.read(*self._inside(x, memory, now, context, blocks is not None), blocks)
            outputs.append(y)
            memory = self._written(memory, y, now)
            blocks = None if blocks is None else self._emptied(blocks, now, stack, batch)
        after = None if blocks is None else Carried(blocks, memory)
        return (_outputs(self.part, outputs, segments, past, x), after) if outputs else (x, after)

    def _inside(
        self, x: Tensor, memory: Tensor, now: _Segment, context: Context, stateful: bool
    ) -> tuple[Tensor, Context]:
        """Concatenate memory vectors and positions of a segment to rows (B, W, D); return (rows, their context)."""
        first, last = now.span
        size, device = self.part.num_memory, x.device
        steps = torch.arange(now.width, device=device)
        lead, counts_read, done = (column(counts, device) for counts in (now.lead, now.taken, now.done))
        memory_place = (size + done - first + steps - lead).clamp(size, size + max(0, last - first - 1))
        ending = (steps - lead - counts_read).clamp(0, size - 1)
        place = torch.where(steps < lead, steps, torch.where(steps < lead + counts_read, memory_place, ending))
        row = picked(torch.cat((memory, x[:, first:last]), 1), place)
        lengths = None if len(now.lead) == 1 else Counts(now.sizes)
        if not stateful:
            return row, Context(steps[None], None if lengths is None else lengths.tensor(device), tap=context.tap)
        arrival = Arrival(Counts(each_of(now.before, x.shape[0])), now.width, lengths, device)
        return row, Context(arrival.positions, arrival.lengths, arrival=arrival, tap=context.tap)

    def _written(self, memory: Tensor, y: Tensor, now: _Segment) -> Tensor:
        """Return the next memory (B, M, D): the last M outputs of y in rows whose segment ends, else ``memory``."""
        if not any(now.ends):
            return memory
        steps = torch.arange(self.part.num_memory, device=y.device)
        start = column([a + b for a, b in zip(now.lead, now.taken, strict=True)], y.device)
        written = picked(y, (start + steps).clamp(max=y.shape[1] - 1)).to(memory.dtype)
        if all(now.ends):
            return written
        return torch.where(torch.tensor(now.ends, device=y.device)[:, None, None], written, memory)

    def _emptied(self, blocks: Any, now: _Segment, stack: Layered, batch: int) -> Any:
        """Reset the state of the blocks in the rows whose segment has ended."""
        if not any(now.ends):
            return blocks
        fresh = stack.begin(batch, self.part.row_positions)
        if all(now.ends):
            return fresh
        return rows(join(blocks, fresh), [batch + b if end else b for b, end in enumerate(now.ends)])


@dataclass(frozen=True)
class _Segment:
    """One pass of a segment through the blocks; lists have one entry per row, or a single entry if all are equal.

    before: number of positions of the segment, memory included, that the blocks have read.   lead: number of memory
    vectors that this pass reads.   done: number of positions of the call that earlier passes have read.   taken: number
    of positions of the call that this pass reads.   ends: True if the pass writes the memory.   size: number of memory
    vectors.
    """

    before: list[int]
    lead: list[int]
    done: list[int]
    taken: list[int]
    ends: list[bool]
    size: int

    @property
    def sizes(self) -> list[int]:
        """Number of positions of the pass in each row, memory included."""
        both = zip(self.lead, self.taken, self.ends, strict=True)
        return [lead + count + self.size * end for lead, count, end in both]

    @property
    def width(self) -> int:
        """Length W of the padded rows of the pass."""
        return max(self.sizes)

    @property
    def span(self) -> tuple[int, int]:
        """Range (first, end) of the positions of the call that any row reads in this pass; ``end`` is exclusive."""
        read = [(done, done + count) for done, count in zip(self.done, self.taken, strict=True) if count]
        return min(first for first, _ in read), max(last for _, last in read)


def _segments(part: spec.RecurrentMemory, past: Sequence[int], counts: Sequence[int], ends: bool) -> Iterator[_Segment]:
    """Yield the passes that read ``counts`` positions after ``past``.

    ends: True to write the memory at the end of every full segment, False to write it only if more positions follow.
    """
    done, size = [0] * len(past), part.num_memory
    while any(numbers < count for numbers, count in zip(done, counts, strict=True)):
        at = [(p + d) % part.segment for p, d in zip(past, done, strict=True)]
        numbers = [min(count - d, part.segment - j) for count, d, j in zip(counts, done, at, strict=True)]
        after = [a + b for a, b in zip(done, numbers, strict=True)]
        full = [t > 0 and j + t == part.segment for j, t in zip(at, numbers, strict=True)]
        yield _Segment(
            before=[size + j if j else 0 for j in at],
            lead=[size if t and not j else 0 for j, t in zip(at, numbers, strict=True)],
            done=done,
            taken=numbers,
            ends=[f and (ends or a < count) for f, a, count in zip(full, after, counts, strict=True)],
            size=size,
        )
        done = after


def _outputs(
    part: spec.RecurrentMemory, outputs: list[Tensor], segments: list[_Segment], past: list[int], x: Tensor
) -> Tensor:
    """Gather the outputs (B, N, D) at the positions of x (B, N, D) from the outputs of all passes, ``outputs``."""
    widths = torch.tensor([0, *(now.width for now in segments)], device=x.device)
    start, lead = column(past, x.device) % part.segment, column(segments[0].lead, x.device)
    places = start + torch.arange(x.shape[1], device=x.device)
    number = (places // part.segment).clamp(max=len(segments) - 1)
    place_in_pass = torch.where(number == 0, lead - start, part.num_memory) + places - part.segment * number
    inside = torch.minimum(place_in_pass, widths[number + 1] - 1)  # padding has no output: keep its index in range
    return picked(torch.cat(outputs, 1), widths.cumsum(0)[number] + inside)
