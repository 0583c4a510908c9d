"""MEGABYTE: blocks over patches of positions, and blocks inside each patch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Layouts
from qkv.layers.linear.linear import Linear
from qkv.layers.positions import Learned
from qkv.models.stack.layered import Layered
from qkv.models.stack.segmentation import Segmentation, column, each_of, picked, places_of
from qkv.spec.models import segmentation as spec
from qkv.spec.parts import Learned as LearnedSpec
from qkv.spec.register import implements
from qkv.state.arrival import Arrival, Counts
from qkv.state.store import slots_for
from qkv.state.tree import join, rows


class PatchStack(Layered):
    """Stack of the blocks over patches; see ``Layered``."""

    def __init__(self, part: spec.PatchStack, width: int):
        super().__init__()
        self.lay(part, width, "segmentation.patches.blocks")


class PatchState(NamedTuple):
    """Decoding state of MEGABYTE.

    blocks: state of the local blocks inside the current patch.   patches: state of the global blocks over patches.
    signal (B, P, D): output of the global blocks for each position of the current patch.   values (B, P, D): input
    vectors of the current patch read so far, then 0.
    """

    blocks: Any
    patches: Any
    signal: Tensor
    values: Tensor


@implements(spec.Megabyte)
class Megabyte(Segmentation):
    """MEGABYTE (Yu et al. 2023); see the spec for the equations.

        x (B, N, D) ─┬─ patches (B, K, P D) ─ W ─ one patch later ─ global (B, K, G) ─ U ─┐
                     └─ one position later (B K, P, D) ────────────────────────────────── + ─ local (B K, P, D) ─ y

    Without a state, the local blocks read all patches in parallel, as rows of a batch. With a state, a call reads the
    rest of each row's current patch first, then all later patches in parallel.
    """

    part: spec.Megabyte

    def __init__(self, part: spec.Megabyte, width: int):
        super().__init__(part)
        self.width, over = width, part.inner_width(width)
        self.patches = PatchStack(part.patches, over)
        self.join = Linear(part.size * width, over, bias=False)
        self.split = Linear(over, part.size * width, bias=False)
        self.start = Learned(LearnedSpec(), 1, over)
        self.first = Learned(LearnedSpec(), 1, width)

    @property
    def inner(self) -> Layered:
        return self.patches

    def layouts(self) -> Layouts:
        return {"start.table": WHOLE, "first.table": WHOLE}

    def init_state(self, stack: Layered, batch: int, capacity: int | None) -> PatchState:
        room = None if capacity is None else capacity // self.part.size + 1
        empty = self.first.table.detach().new_zeros(batch, self.part.size, self.width)
        return PatchState(stack.begin(batch, self.part.size), self.patches.begin(batch, room), empty, empty.clone())

    def own_bytes(self, length: int, batch: int) -> int:
        patches, numbers = length // self.part.size + 1, 2 * batch * self.part.size * self.width
        return numbers * self.first.table.element_size() + sum(
            branch.state_bytes(patches, batch) for branch in self.patches.branches
        )

    def room(self, length: int) -> int:
        return self.part.size * slots_for(length // self.part.size + 1)

    def read(
        self, x: Tensor, context: Context, stack: Layered, state: PatchState | None
    ) -> tuple[Tensor, PatchState | None]:
        if not x.shape[1] or not x.shape[0] or (context.arrival and context.arrival.after == context.arrival.past):
            return x, state
        return (self._whole(x, context, stack), None) if state is None else self._following(x, context, stack, state)

    def _whole(self, x: Tensor, context: Context, stack: Layered) -> Tensor:
        """Compute the outputs (B, N, D) of whole rows, all patches in parallel."""
        batch, count, width = x.shape
        size, patches = self.part.size, count // self.part.size + 1
        lengths = context.lengths
        steps, inner = (
            torch.arange(max(size, patches), device=x.device)[None],
            None if lengths is None else lengths // size + 1,
        )
        over = self._over(x[:, : (patches - 1) * size], Context(steps[:, :patches], inner, tap=context.tap))
        later = torch.cat((x.new_zeros(batch, 1, width), x, x.new_zeros(batch, patches * size - count - 1, width)), 1)
        local = self._begun(later.view(batch * patches, size, width)) + over.flatten(0, 1)
        ends = torch.full((1, 1), count, device=x.device) if lengths is None else lengths[:, None]
        inside = (ends + 1 - size * torch.arange(patches, device=x.device)).clamp(0, size).expand(batch, -1).flatten()
        full = lengths is None and count + 1 == patches * size
        y, _ = stack.read(local, Context(steps[:, :size], None if full else inside, tap=context.tap))
        return y.view(batch, patches * size, width)[:, 1 : count + 1]

    def _begun(self, later: Tensor) -> Tensor:
        """Replace the first vector of each patch (…, P, D) by the learned start vector."""
        return torch.cat((self.first.table.to(later.dtype).expand(*later.shape[:-2], 1, -1), later[..., 1:, :]), -2)

    def _over(self, x: Tensor, context: Context) -> Tensor:
        """Run the global blocks on the start vector and K - 1 whole patches x (B, (K - 1) P, D); return (B, K, P,
        D).
        """
        joined = self.join(x.reshape(x.shape[0], -1, self.part.size * self.width))
        start = self.start.table.to(joined.dtype).expand(x.shape[0], 1, -1)
        return self._project_signal(self.patches.read(torch.cat((start, joined), 1), context)[0])

    def _project_signal(self, h: Tensor) -> Tensor:
        """Project outputs h (B, K, G) of the global blocks to one vector for each position of a patch, (B, K, P, D)."""
        return self.split(h).unflatten(-1, (self.part.size, self.width))

    def _following(self, x: Tensor, context: Context, stack: Layered, state: PatchState) -> tuple[Tensor, PatchState]:
        """Read the positions x (B, N, D) after ``state``; return (outputs (B, N, D), next state)."""
        batch, size = x.shape[0], self.part.size
        now = _Call(size, *places_of(context, x.shape[1]), x.device)
        values = now.values(state.values, x)
        signals, patches = self._signals(values, now, context, state)
        later = torch.cat((values.new_zeros(batch, 1, self.width), values.flatten(1, 2)[:, :-1]), 1)
        local = self._begun(later.unflatten(1, (-1, size))) + signals
        rest, blocks = _rest(local[:, 0], now, context, stack, state.blocks)
        after, blocks = _patches(local[:, 1:], now, context, stack, blocks)
        outputs = torch.cat((rest, after), 1)
        places = now.outputs(x.shape[1], rest.shape[1]).clamp(max=outputs.shape[1] - 1)
        return picked(outputs, places), PatchState(blocks, patches, now.current(signals), now.current(values))

    def _signals(self, values: Tensor, now: _Call, context: Context, state: PatchState) -> tuple[Tensor, Any]:
        """Return (outputs of the global blocks for current and later patches (B, M + 1, P, D), their next state)."""
        batch, signals, patches = values.shape[0], state.signal[:, None], state.patches
        read = [begins + full for begins, full in zip(now.begins, now.full, strict=True)]
        if count := max(read):
            joined = self.join(values[:, :-1].flatten(2))
            joined = torch.cat((self.start.table.to(joined.dtype).expand(batch, 1, -1), joined), 1)
            lead = column([not begins for begins in now.begins], now.device).long()
            new = picked(joined, (lead + torch.arange(count, device=now.device)).clamp(max=joined.shape[1] - 1))
            past = [p // now.size + 1 if p else 0 for p in now.past]
            h, patches = self.patches.read(new, _inside(past, read, count, batch, context, now.device), patches)
            signals = torch.cat((signals, self._project_signal(h).to(signals.dtype)), 1)
        lead = column(now.begins, now.device).long()
        places = (lead + torch.arange(values.shape[1], device=now.device)).clamp(max=signals.shape[1] - 1)
        return picked(signals.flatten(2), places).view_as(values), patches


class _Call:
    """Positions of a call, divided into patches; lists have one entry per row, or a single entry if all are equal.

    past: positions read before the call.   counts: new positions.   offset: positions of the current patch read before
    the call.   full: number of patches that the call completes.   begins: True if the call reads the start of a row.
    first: number of vectors of the current patch that the local blocks have read, ``offset`` + 1, or 0 at the start of
    a row.   taken: number of vectors of the current patch that the local blocks read in this call.
    """

    def __init__(self, size: int, past: list[int], counts: list[int], device: torch.device):
        self.size, self.past, self.counts, self.device = size, past, counts, device
        self.offset = [p % size for p in past]
        self.full = [(j + n) // size for j, n in zip(self.offset, counts, strict=True)]
        self.begins = [not p and n > 0 for p, n in zip(past, counts, strict=True)]
        self.first = [j + 1 if p else 0 for p, j in zip(past, self.offset, strict=True)]
        ends = [min(size, j + n + 1) if n else 0 for j, n in zip(self.offset, counts, strict=True)]
        self.taken = [max(0, end - first) for end, first in zip(ends, self.first, strict=True)]

    def values(self, current: Tensor, x: Tensor) -> Tensor:
        """Return the input vectors (B, M + 1, P, D) of the current and later patches, padded with 0.

        current (B, P, D): vectors of the current patch read before the call.   x (B, N, D): new vectors.
        """
        steps = torch.arange((max(self.full) + 1) * self.size, device=self.device)
        offset, counts = column(self.offset, self.device), column(self.counts, self.device)
        places = torch.where(steps < offset, steps, self.size + steps - offset)
        inputs = picked(torch.cat((current, x.to(current.dtype)), 1), places.clamp(max=self.size + x.shape[1] - 1))
        return inputs.masked_fill((steps >= offset + counts)[..., None], 0).unflatten(1, (-1, self.size))

    def current(self, patches: Tensor) -> Tensor:
        """Select from ``patches`` (B, M + 1, P, D) the patch that is current after the call, (B, P, D)."""
        return picked(patches.flatten(2), column(self.full, self.device)).view_as(patches[:, 0])

    def outputs(self, count: int, rest: int) -> Tensor:
        """Return the indices of the outputs at ``count`` new positions.

        The first ``rest`` outputs belong to the current patch, all others to later patches.
        """
        steps = column(self.offset, self.device) + 1 + torch.arange(count, device=self.device)
        inside = (steps - column(self.first, self.device)).clamp(0, max(0, rest - 1))
        return torch.where(steps < self.size, inside, rest + steps - self.size)


def _rest(local: Tensor, now: _Call, context: Context, stack: Layered, blocks: Any) -> tuple[Tensor, Any]:
    """Run the local blocks on the rest of the current patch; return (outputs (B, W, D), next state)."""
    count = max(now.taken)
    if not count:
        return local[:, :0], blocks
    places = column(now.first, now.device) + torch.arange(count, device=now.device)
    new = picked(local, places.clamp(max=now.size - 1))
    return stack.read(new, _inside(now.first, now.taken, count, len(local), context, now.device), blocks)


def _patches(local: Tensor, now: _Call, context: Context, stack: Layered, blocks: Any) -> tuple[Tensor, Any]:
    """Run the local blocks on the later patches (B, M, P, D); return (outputs (B, M P, D), next state)."""
    batch, count = local.shape[:2]
    if not count:
        return local.flatten(1, 2), blocks
    ends = each_of([j + n + 1 for j, n in zip(now.offset, now.counts, strict=True)], batch)
    counts = [min(now.size, max(0, end - now.size * (i + 1))) for end in ends for i in range(count)]
    most = max(counts)  # below P if only one patch is begun: rows of equal length then need no padding
    inside = _inside([0] * len(counts), counts, most, len(counts), context, now.device)
    y, begun = stack.read(local.flatten(0, 1)[:, :most], inside, stack.begin(len(counts), now.size))
    last = [batch + b * count + full - 1 if full else b for b, full in enumerate(each_of(now.full, batch))]
    return y.unflatten(0, (batch, count)).flatten(1, 2), rows(join(blocks, begun), last)


def _inside(
    past: Sequence[int], counts: Sequence[int], count: int, batch: int, context: Context, device: torch.device
) -> Context:
    """Build the context of ``count`` positions after ``past``, of which ``counts`` are unpadded, for ``batch`` rows."""
    lengths = None if min(counts) == count else Counts(each_of(counts, batch))
    arrival = Arrival(Counts(each_of(past, batch)), count, lengths, device)
    return Context(arrival.positions, arrival.lengths, arrival=arrival, tap=context.tap)
