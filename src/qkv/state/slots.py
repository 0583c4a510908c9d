"""Arrival and store of a recorded step, which is repeated on the same memory: positions are read from a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.state.arrival import Arrival
from qkv.state.store import Dense, View


class DeviceArrival(Arrival):
    """Arrival of one new position per row, which a tensor holds and the host does not know.

    Access to counts, such as ``past`` or ``end``, raises ``AttributeError``: a step that reads them cannot be repeated
    at other positions.
    """

    def __init__(self, positions: Tensor):
        """``positions`` (B, 1): position in its row of each new token."""
        self.positions = positions
        self.count, self.device, self.lengths, self.start, self._memo = 1, positions.device, None, None, {}


class Slots(Dense):
    """Dense store on the memory of another store: it exposes all slots, and writes to the slots that a tensor holds.

    Slots after the position of a row hold arbitrary data, which a causal mask must hide.
    """

    def append(self, keys: Tensor, values: Tensor, arrival: Arrival) -> View:
        rows, count = self.keys.shape[0], self.keys.shape[2]
        row = arrival.once(("rows", rows), lambda: torch.arange(rows, device=keys.device)[:, None])
        self.keys[row, :, arrival.positions] = keys.transpose(1, 2).to(self.keys.dtype)
        self.values[row, :, arrival.positions] = values.transpose(1, 2).to(self.values.dtype)
        slots = arrival.once(("slots", count), lambda: torch.arange(count, device=keys.device)[None])
        return View(self.keys, self.values, slots, in_place=True)
