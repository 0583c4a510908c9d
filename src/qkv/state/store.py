"""Stores of keys and values (KV caches): base class, dense store and ring buffer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from qkv.state.arrival import Arrival, Counts

_FIRST_CAPACITY = 64
"""Initial number of slots of a store that grows by doubling."""


class View(NamedTuple):
    """Keys and values that the queries of a call may see, in M slots.

    keys (B, H, M, Dk), values (B, H, M, Dv), positions (B or 1, M): position in each slot, -1 if it is empty.
    in_place: True if slot p holds position p, up to the end of the row. recent: True if the slots hold exactly the
    positions of the window, so that under a plain window mask a single query sees all of them.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
    in_place: bool = False
    recent: bool = False


class Store(ABC):
    """Base class of KV caches: keys and values of the positions that B rows have read.

    Mixers only call ``append``, and attend to the view that it returns; the mapping from positions to slots is internal
    to the store. Other stores therefore need no change in a mixer. ``qkv.state.pages`` has a store whose rows share
    memory. A quantised store with 8-bit codes and a scale per position would encode new keys and values in ``append``,
    and decode them in the view.

    ``append`` and ``overwrite`` change a store in place. Stores share no memory that is still written to: ``rows`` and
    ``join`` copy it immediately, or at the latest before an ``append`` writes to it.
    """

    @abstractmethod
    def append(self, keys: Tensor, values: Tensor, arrival: Arrival) -> View:
        """Store keys (B, H, N, Dk) and values (B, H, N, Dv) except padding; return the view for the queries."""

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a copy of the store with ``change`` applied to each of its tensors."""

    @abstractmethod
    def tensors(self) -> Iterator[Tensor]:
        """Iterate over the tensors of the store, in the order of ``map``."""

    @abstractmethod
    def rows(self, index: Tensor) -> Self:
        """Return a copy with the rows ``index``, in any order and with repeats."""

    def one_row(self, row: int, length: int | None = None) -> Self:
        """Return a copy of one row. ``length``: number of its positions, or None; slots beyond it may be left out."""
        return self.rows(torch.tensor([row], device=next(self.tensors()).device))

    @abstractmethod
    def overwrite(self, to: Sequence[int], source: Sequence[int]) -> Self:
        """Replace the rows ``to`` by copies of the rows ``source``, in place; return the store."""

    @abstractmethod
    def join(self, other: Any) -> Self:
        """Return a copy with the rows of this store, followed by the rows of ``other``."""

    @abstractmethod
    def cut(self, lengths: Counts) -> Self:
        """Truncate each row to ``lengths`` (B) positions; return the store. Only ``rewindable`` branches call it."""

    @property
    def nbytes(self) -> int:
        """Total size of its tensors in bytes."""
        return sum(t.nbytes for t in self.tensors())


class Dense(Store):
    """Key/value cache, position p in slot p: keys (B, H, C, Dk), values (B, H, C, Dv); C slots, doubled as needed."""

    def __init__(self, keys: Tensor, values: Tensor, most: int | None = None):
        """``keys``, ``values``: buffers, empty slots included. ``most``: maximum number of slots; None for no limit."""
        self.keys, self.values, self.most = keys, values, most

    def append(self, keys: Tensor, values: Tensor, arrival: Arrival) -> View:
        end = arrival.end
        self._grow(end)
        if arrival.start is None:
            self._write(keys, values, arrival.positions, arrival.real)
        else:
            self._fill(keys, values, arrival.start)
        positions = arrival.once(("slots", end), lambda: torch.arange(end, device=keys.device)[None])
        return View(self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end), positions, in_place=True)

    def room(self, needed: int) -> tuple[Tensor, Tensor]:
        """Grow to at least ``needed`` slots; return the buffers of keys and values, to which kernels write directly."""
        self._grow(needed)
        return self.keys, self.values

    def _grow(self, needed: int) -> None:
        """Double the number of slots until it is at least ``needed``, up to ``most``."""
        size = self.keys.shape[2]
        if needed <= size:
            return
        capacity = slots_for(needed, size)
        capacity = capacity if self.most is None else min(capacity, self.most)
        self.keys, self.values = (padded(t, 2, capacity) for t in (self.keys, self.values))

    def _fill(self, keys: Tensor, values: Tensor, first: int) -> None:
        """Write keys and values (B, H, N, …) to the slots from ``first`` on, the same in all rows."""
        count = keys.shape[2]
        self.keys.narrow(2, first, count).copy_(keys)
        self.values.narrow(2, first, count).copy_(values)

    def _write(self, keys: Tensor, values: Tensor, slots: Tensor, real: Tensor | None) -> None:
        """Write keys[b, :, n] and values[b, :, n] to slot slots[b, n] where real[b, n]."""
        batch, count = keys.shape[0], keys.shape[2]
        row = torch.arange(batch, device=slots.device)[:, None].expand(batch, count)
        slots = slots.expand(batch, count)
        k, v = keys.transpose(1, 2), values.transpose(1, 2)
        if real is not None:
            row, slots, k, v = row[real], slots[real], k[real], v[real]
        self.keys[row, :, slots] = k.to(self.keys.dtype)
        self.values[row, :, slots] = v.to(self.values.dtype)

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        return self._like(change(self.keys), change(self.values))

    def _like(self, keys: Tensor, values: Tensor) -> Self:
        return type(self)(keys, values, self.most)

    def tensors(self) -> Iterator[Tensor]:
        yield self.keys
        yield self.values

    def rows(self, index: Tensor) -> Self:
        return self.map(lambda t: t.index_select(0, index))

    def one_row(self, row: int, length: int | None = None) -> Self:
        capacity = self.keys.shape[2]
        size = capacity if length is None else min(capacity, slots_for(length))
        return self.map(lambda t: t[row : row + 1, :, :size].clone())

    def overwrite(self, to: Sequence[int], source: Sequence[int]) -> Self:
        self.keys, self.values = (overwritten(t, to, source) for t in (self.keys, self.values))
        return self

    def join(self, other: Any) -> Self:
        return self._like(joined(self.keys, other.keys), joined(self.values, other.values))

    def cut(self, lengths: Counts) -> Self:
        # Later slots are overwritten before they are read.
        return self


class Ring(Dense):
    """Ring buffer of keys and values: holds the first ``sinks`` positions (attention sinks) and the latest ``window``.

    Position p is in slot p if p < sinks, else in slot sinks + (p - sinks) mod window. Until all slots are filled, slot
    p holds position p. Afterwards, a single query attends to the updated ring, while several queries attend to the keys
    of the ring before the call and to the new keys, concatenated.
    """

    def __init__(self, keys: Tensor, values: Tensor, window: int, sinks: int = 0):
        super().__init__(keys, values, window + sinks)
        self.window, self.sinks = window, sinks

    def _like(self, keys: Tensor, values: Tensor) -> Self:
        return type(self)(keys, values, self.window, self.sinks)

    def append(self, keys: Tensor, values: Tensor, arrival: Arrival) -> View:
        full = self.window + self.sinks
        if arrival.start is not None and arrival.end <= full:
            return super().append(keys, values, arrival)
        if keys.shape[2] == 1:  # the overwritten slot belongs to a position that has just left the window
            self._turn(keys, values, arrival)
            slots = arrival.once(("ring", self.window, self.sinks), lambda: self._slot_positions(arrival.after_tensor))
            return View(self.keys, self.values, slots[:, : self.keys.shape[2]], recent=arrival.start is not None)
        before = arrival.once(("ring", self.window, self.sinks), lambda: self._slot_positions(arrival.past_tensor))[
            :, : self.keys.shape[2]
        ]
        new = arrival.positions if arrival.real is None else arrival.positions.masked_fill(~arrival.real, -1)
        rows = max(before.shape[0], new.shape[0])
        positions = torch.cat((before.expand(rows, -1), new.expand(rows, -1)), 1)
        view = View(torch.cat((self.keys, keys), 2), torch.cat((self.values, values), 2), positions)
        self._turn(keys, values, arrival)
        return view

    def _turn(self, keys: Tensor, values: Tensor, arrival: Arrival) -> None:
        """Overwrite the oldest keys and values of the window with those of the new positions."""
        window, sinks = self.window, self.sinks
        self._grow(min(arrival.end, window + sinks))
        if arrival.start is not None and keys.shape[2] == 1:
            self._fill(
                keys, values, arrival.start if arrival.start < sinks else sinks + (arrival.start - sinks) % window
            )
            return
        positions, ends = arrival.positions, arrival.after_tensor[:, None]
        # Positions of one call may share a slot; only the latest is written.
        lasting = (positions < sinks) | (positions >= ends - window)
        lasting = (lasting if arrival.real is None else lasting & arrival.real).expand(keys.shape[0], -1)
        self._write(
            keys, values, torch.where(positions < sinks, positions, sinks + (positions - sinks) % window), lasting
        )

    def _slot_positions(self, past: Tensor) -> Tensor:
        """Return the position in each slot after ``past`` (B) positions were read, (B, window + sinks); -1 if empty."""
        window, sinks = self.window, self.sinks
        slot = torch.arange(window + sinks, device=past.device)[None]
        past = past[:, None]
        newest = past - 1
        turned = newest - (newest - slot) % window
        positions = torch.where(slot < sinks, slot, turned) if sinks else turned
        return torch.where(
            (positions >= 0) & (positions < past) & ((slot < sinks) | (positions >= sinks)), positions, -1
        )

    def cut(self, lengths: Counts) -> Self:
        raise NotImplementedError(
            "a state with a ring buffer cannot drop positions: it has overwritten earlier ones; read the text again"
        )


def new_store(
    batch: int,
    heads: int,
    widths: tuple[int, int],
    like: Tensor,
    capacity: int | None = None,
    ring: tuple[int, int] | None = None,
) -> Store:
    """Create an empty store of keys and values for ``batch`` rows: a ring buffer if ``ring`` is given, else dense.

    widths: features of (a key, a value).   like: tensor with its dtype and device.   capacity: fixed number of slots;
    None to grow by doubling.   ring: (window, sinks) if queries only ever see the latest ``window`` and the first
    ``sinks`` positions.
    """
    slots = _FIRST_CAPACITY if capacity is None else capacity
    slots = slots if ring is None else min(slots, sum(ring))
    keys, values = (like.new_zeros(batch, heads, slots, width) for width in widths)
    return Dense(keys, values) if ring is None else Ring(keys, values, *ring)


def slots_for(length: int, capacity: int = _FIRST_CAPACITY) -> int:
    """Return the number of slots after doubling ``capacity`` slots until ``length`` positions fit."""
    slots = max(capacity, 1)
    while slots < length:
        slots *= 2
    return slots


def padded(t: Tensor, axis: int, size: int) -> Tensor:
    """Pad an axis of ``t`` to ``size`` with zeros at its end."""
    if t.shape[axis] == size:
        return t
    shape = list(t.shape)
    shape[axis] = size - shape[axis]
    return torch.cat((t, t.new_zeros(shape)), axis)


def joined(first: Tensor, second: Tensor) -> Tensor:
    """Concatenate the rows of two tensors; other axes of different size are padded with zeros at the end."""
    for axis in range(1, first.dim()):
        size = max(first.shape[axis], second.shape[axis])
        first, second = padded(first, axis, size), padded(second, axis, size)
    return torch.cat((first, second.to(first.dtype)))


def overwritten(t: Tensor, to: Sequence[int], source: Sequence[int]) -> Tensor:
    """Replace the rows ``to`` of ``t`` by copies of the rows ``source``; in place if ``t`` is contiguous."""
    t = t.contiguous()
    lines = t.unbind(0)
    # Row by row: index operations would copy twice.
    torch._foreach_copy_([lines[row] for row in to], [lines[row] for row in source])  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    return t
