"""Store and place of a step on fixed memory."""

from __future__ import annotations

import pytest
import torch

from qkv.state.arrival import Arrival, Counts
from qkv.state.slots import DeviceArrival, Slots
from qkv.state.store import Dense


def test_slots_hold_what_a_dense_store_holds_at_the_same_addresses() -> None:
    generator = torch.Generator().manual_seed(0)
    dense = Dense(torch.zeros(3, 2, 8, 4), torch.zeros(3, 2, 8, 5))
    other = dense.map(torch.clone)
    slots, positions = Slots(other.keys, other.values), torch.tensor([[2], [0], [7]])
    for step in (0, -1, 1):
        keys, values = (torch.randn(3, 2, 1, width, generator=generator) for width in (4, 5))
        dense.append(keys, values, Arrival(Counts((positions[:, 0] + step).clamp(0, 7).tolist()), 1))
        view = slots.append(keys, values, DeviceArrival((positions + step).clamp(0, 7)))
        assert view.keys is other.keys
        assert view.values is other.values
        assert view.positions.tolist() == [list(range(8))]
    assert torch.equal(other.keys, dense.keys)
    assert torch.equal(other.values, dense.values)


@pytest.mark.parametrize("name", ["past", "after", "end"])
def test_counts_that_only_the_device_knows_cannot_be_asked_for(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(DeviceArrival(torch.tensor([[2], [0]])), name)
