"""Place and store of a step that is repeated on the same memory: positions are read from a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.state.arrival import Arrival
from qkv.state.store import Dense, View


class DeviceArrival(Arrival):
    """Place of one new position of each row that a tensor holds and the host does not know.

    Asking for counts, such as ``past`` or ``end``, raises ``AttributeError``: a step that read them could not be
    repeated at other positions.
    """

    def __init__(self, positions: Tensor):
        """``positions`` (B, 1): position in its row of each new token."""
        self.positions = positions
        self.count, self.device, self.lengths, self.start, self._memo = 1, positions.device, None, None, {}


class Slots(Dense):
    """Dense store that shows all its slots and writes to those that a tensor names; its memory is that of another one.

    Slots after the position of a row hold anything; only a causal mask may read them.
    """

    def append(self, keys: Tensor, values: Tensor, arrival: Arrival) -> View:
        rows, count = self.keys.shape[0], self.keys.shape[2]
        row = arrival.once(("rows", rows), lambda: torch.arange(rows, device=keys.device)[:, None])
        self.keys[row, :, arrival.positions] = keys.transpose(1, 2).to(self.keys.dtype)
        self.values[row, :, arrival.positions] = values.transpose(1, 2).to(self.values.dtype)
        slots = arrival.once(("slots", count), lambda: torch.arange(count, device=keys.device)[None])
        return View(self.keys, self.values, slots, in_place=True)
