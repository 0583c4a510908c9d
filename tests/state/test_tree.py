"""What can be done to any state."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from qkv.state.arrival import Counts
from qkv.state.store import Dense
from qkv.state.tree import load, map_tensors, nbytes, overwrite, rows, save, tensors, to


class Pair(NamedTuple):
    """A state with names."""

    first: Tensor
    second: Any


def state() -> Any:
    """Three rows in tuples, named tuples and empty places."""
    numbers = torch.arange(3)
    return (Pair(numbers[:, None] * 1.5, (numbers * 10, ())), (), [numbers.double()[:, None, None].expand(3, 2, 2)])


def test_the_form_is_kept() -> None:
    seen = map_tensors(lambda t: t + 1, state())
    assert isinstance(seen[0], Pair)
    assert isinstance(seen[0].second, tuple)
    assert seen[0].second[1] == ()
    assert seen[1] == ()
    assert isinstance(seen[2], list)
    assert seen[0].first.flatten().tolist() == [1.0, 2.5, 4.0]


def test_tensors_come_in_order() -> None:
    assert [t.dtype for t in tensors(state())] == [torch.float32, torch.int64, torch.float64]
    assert list(tensors(((), ((), ())))) == []


@pytest.mark.parametrize("index", [[2, 0], [1], [], [0, 0, 2, 2, 1], torch.tensor([2, 1, 0])])
def test_rows_reorder_fork_and_drop(index: Any) -> None:
    chosen = list(map(int, index))
    for before, after in zip(tensors(state()), tensors(rows(state(), index)), strict=True):
        assert torch.equal(after, before[chosen])


def test_rows_are_copies_even_in_their_own_order() -> None:
    origin = state()
    copy = rows(origin, [0, 1, 2])
    for t in tensors(copy):
        t += 1
    assert all(torch.equal(a, b) for a, b in zip(tensors(origin), tensors(state()), strict=True))


def test_a_row_that_is_not_there_is_an_error() -> None:
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        rows(state(), [3])


def test_bytes_are_counted_by_element() -> None:
    assert nbytes(state()) == 3 * 4 + 3 * 8 + 12 * 8
    assert nbytes(()) == 0


def test_conversion_leaves_counts_alone() -> None:
    seen = list(tensors(to(state(), dtype=torch.bfloat16)))
    assert [t.dtype for t in seen] == [torch.bfloat16, torch.int64, torch.bfloat16]
    assert next(tensors(to(state(), device="meta"))).device.type == "meta"


def test_a_state_comes_back_from_its_file(tmp_path: Path) -> None:
    """More leaves than one digit counts, so that their order is not that of their names as words."""
    many = (state(), tuple(torch.full((1, 2), float(i)) for i in range(12)))
    save(many, tmp_path / "state.safetensors")
    loaded = load(map_tensors(torch.zeros_like, many), tmp_path / "state.safetensors")
    assert isinstance(loaded[0][0], Pair)
    for a, b in zip(tensors(loaded), tensors(many), strict=True):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype


def test_rows_are_overwritten_in_place_and_the_others_stay() -> None:
    before, given = state(), rows(state(), [0, 1, 2])
    places = [t.data_ptr() for t in tensors(given)]
    after = overwrite(given, [2], [0])
    assert [t.data_ptr() for t in tensors(after)] == places
    for one, other in zip(tensors(after), tensors(rows(before, [0, 1, 0])), strict=True):
        assert torch.equal(one, other)


def test_a_tensor_whose_rows_share_their_memory_is_copied_before_it_is_written() -> None:
    shared = torch.arange(2.0).expand(3, 2)
    (after,) = overwrite((shared,), [1], [0])
    after[1] += 5
    assert after.tolist() == [[0, 1], [5, 6], [0, 1]]
    assert shared.tolist() == [[0, 1]] * 3
    assert overwrite((shared,), [], [])[0] is shared


def test_a_tensor_outside_of_stores_is_counted_in_each_place_and_a_store_once() -> None:
    """The first change of rows makes copies of the tensor, as of an encoder's output that several layers read."""
    memory, store = torch.zeros(2, 3, 4), Dense(torch.zeros(2, 1, 5, 4), torch.zeros(2, 1, 5, 4))
    held = (Counts([3, 3]), (memory, store), (memory,))
    assert nbytes(held) == 16 + 2 * memory.nbytes + store.nbytes
    assert nbytes(rows(held, [0, 1])) == nbytes(held)
    assert nbytes((store, store)) == store.nbytes
