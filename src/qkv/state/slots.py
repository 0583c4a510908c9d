"""Arrival and KV cache for a recorded decoding step (CUDA graph), which reads its positions from a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.state.arrival import Arrival
from qkv.state.store import Dense, View


class DeviceArrival(Arrival):
    """Arrival of one new position per row, where a tensor on the device holds the positions.

    Access to counts in host memory, such as ``past`` or ``end``, raises ``AttributeError``, because a recorded step
    that depends on them could not be repeated at other positions.
    """

    def __init__(self, positions: Tensor):
        """``positions`` (B, 1): position of each new token in its row."""
        self.positions = positions
        self.count, self.device, self.lengths, self.start, self._memo = 1, positions.device, None, None, {}


class Slots(Dense):
    """Dense KV cache whose views contain all slots, and which writes to the slots that ``arrival.positions`` holds.

    Slots after the position of a row hold arbitrary data, which a causal mask must hide.
    """

    def append(self, keys: Tensor, values: Tensor, arrival: Arrival) -> View:
        rows, count = self.keys.shape[0], self.keys.shape[2]
        row = arrival.once(("rows", rows), lambda: torch.arange(rows, device=keys.device)[:, None])
        self.keys[row, :, arrival.positions] = keys.transpose(1, 2).to(self.keys.dtype)
        self.values[row, :, arrival.positions] = values.transpose(1, 2).to(self.values.dtype)
        slots = arrival.once(("slots", count), lambda: torch.arange(count, device=keys.device)[None])
        return View(self.keys, self.values, slots, in_place=True)
