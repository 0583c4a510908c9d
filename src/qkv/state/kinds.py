"""State types shared by mixers. Each function returns the next state and may overwrite the buffers of the given one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_FIRST_CAPACITY = 64


class KeyValue(NamedTuple):
    """Key/value cache: keys (B, H, C, Dk) and values (B, H, C, Dv) with C slots, filled from the front."""

    keys: Tensor
    values: Tensor


class Arrival(NamedTuple):
    """Location of the N new positions of a call in each row.

    past (B): positions processed before.   lengths (B): unpadded positions among the N; None: all.
    start: ``past`` as an integer if it is equal in all rows and nothing is padded, else None.   end: max(past + lengths).
    """

    past: Tensor
    lengths: Tensor | None
    start: int | None
    end: int


def key_value(batch: int, heads: int, widths: tuple[int, int], like: Tensor, bounds: tuple[int | None, int | None]) -> KeyValue:
    """Empty cache. bounds: (fixed capacity, or None to grow by doubling; maximum number of slots, or None)."""
    capacity, limit = bounds
    slots = _FIRST_CAPACITY if capacity is None else capacity
    slots = slots if limit is None else min(slots, limit)
    keys, values = (like.new_zeros(batch, heads, slots, width) for width in widths)
    return KeyValue(keys, values)


def _grown(state: KeyValue, needed: int, limit: int | None) -> KeyValue:
    """Grow to at least ``needed`` slots by doubling, up to ``limit``."""
    capacity = state.keys.shape[2]
    if needed <= capacity:
        return state
    while capacity < needed:
        capacity *= 2
    capacity = capacity if limit is None else min(capacity, limit)
    return KeyValue(*(torch.cat((t, t.new_zeros(*t.shape[:2], capacity - t.shape[2], t.shape[3])), 2) for t in state))


def append(state: KeyValue, keys: Tensor, values: Tensor, arrival: Arrival, limit: int | None = None) -> KeyValue:
    """Write position p into slot p. keys (B, H, N, Dk), values (B, H, N, Dv); ``limit``: maximum number of slots."""
    state = _grown(state, arrival.end, limit)
    if arrival.start is not None:
        slots = slice(arrival.start, arrival.end)
        state.keys[:, :, slots] = keys
        state.values[:, :, slots] = values
        return state
    steps = torch.arange(keys.shape[2], device=keys.device)
    return _write(state, keys, values, arrival.past[:, None] + steps, _real(arrival, steps))


def append_ring(state: KeyValue, keys: Tensor, values: Tensor, arrival: Arrival, ring: tuple[int, int]) -> KeyValue:
    """Write position p into slot p if p < sinks, else into slot sinks + (p - sinks) mod window. ring = (window, sinks)."""
    window, sinks = ring
    state = _grown(state, min(arrival.end, window + sinks), window + sinks)
    if arrival.start is not None and keys.shape[2] == 1:
        slot = arrival.start if arrival.start < sinks else sinks + (arrival.start - sinks) % window
        state.keys[:, :, slot : slot + 1] = keys
        state.values[:, :, slot : slot + 1] = values
        return state
    steps = torch.arange(keys.shape[2], device=keys.device)
    positions = arrival.past[:, None] + steps
    real = _real(arrival, steps)
    ends = (arrival.past + (keys.shape[2] if arrival.lengths is None else arrival.lengths))[:, None]
    # Positions of one call may share a slot; only the latest is written.
    lasting = (positions < sinks) | (positions >= ends - window)
    slots = torch.where(positions < sinks, positions, sinks + (positions - sinks) % window)
    return _write(state, keys, values, slots, lasting if real is None else lasting & real)


def ring_positions(past: Tensor, slots: int, ring: tuple[int, int]) -> Tensor:
    """Position in each ring slot after ``past`` (B) positions, (B, slots); -1 if empty."""
    window, sinks = ring
    slot = torch.arange(slots, device=past.device)[None]
    past = past[:, None]
    newest = past - 1
    turned = newest - (newest - slot) % window
    held = torch.where(slot < sinks, slot, turned) if sinks else turned
    return torch.where((held >= 0) & (held < past) & ((slot < sinks) | (held >= sinks)), held, -1)


def _real(arrival: Arrival, steps: Tensor) -> Tensor | None:
    return None if arrival.lengths is None else steps < arrival.lengths[:, None]


def _write(state: KeyValue, keys: Tensor, values: Tensor, slots: Tensor, real: Tensor | None) -> KeyValue:
    """Write keys[b, :, n] and values[b, :, n] into slot slots[b, n] where real[b, n]."""
    row = torch.arange(slots.shape[0], device=slots.device)[:, None].expand_as(slots)
    if real is None:
        real = torch.ones_like(slots, dtype=torch.bool)
    state.keys[row[real], :, slots[real]] = keys.transpose(1, 2)[real].to(state.keys.dtype)
    state.values[row[real], :, slots[real]] = values.transpose(1, 2)[real].to(state.values.dtype)
    return state


def extended(tail: Tensor, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return (tail and x concatenated, new tail). tail (B, T, D): the last T unpadded inputs; x (B, N, D): new inputs."""
    kept = tail.shape[1]
    window = torch.cat((tail, x), 1)
    if lengths is None:
        # A copy: a view would keep the whole sequence in memory.
        return window, window[:, window.shape[1] - kept :].clone()
    index = lengths[:, None] + torch.arange(kept, device=x.device)
    return window, window.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
