"""Layout of weights for decoding: values, parameters and ties stay, and matrices become rows."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from qkv.models.fast import layout
from qkv.models.fast.layout import lay_out
from qkv.system import huge_pages


class Tied(nn.Module):
    """Table and head that are one parameter, a matrix stored (in, out), two views of one matrix, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
        self.head.weight = self.table.weight
        self.columns = nn.Parameter(torch.randn(6, 10).t())
        both = torch.randn(12, 4)
        self.first, self.second = nn.Parameter(both[:8]), nn.Parameter(both[4:])
        self.every_other = nn.Parameter(torch.randn(6, 8)[:, ::2])
        self.register_buffer("counts", torch.arange(5))


@pytest.fixture
def tied(monkeypatch: pytest.MonkeyPatch) -> Tied:
    monkeypatch.setattr(layout, "_LEAST", 1)
    torch.manual_seed(0)
    return Tied()


def addresses(model: nn.Module) -> dict[str, int]:
    return {name: t.data_ptr() for name, t in model.state_dict().items()}


@pytest.mark.parametrize("possible", [True, False])
def test_values_and_ties_stay(tied: Tied, possible: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "possible", lambda: possible)
    before, parameters, places = copy.deepcopy(tied.state_dict()), list(tied.parameters()), addresses(tied)
    lay_out(tied)
    assert all(a is b for a, b in zip(tied.parameters(), parameters, strict=True))
    assert tied.head.weight is tied.table.weight
    for name, value in tied.state_dict().items():
        assert torch.equal(value, before[name])
    moved = {name for name, place in addresses(tied).items() if place != places[name]}
    kept = {"first", "second", "every_other"}  # two share memory, one has gaps
    assert moved == ({*places} - kept if possible else {"columns"})
    assert tied.columns.is_contiguous()
    with torch.no_grad():
        tied.first[4:] += 1
    assert torch.equal(tied.second[:4], tied.first[4:])


def test_a_model_that_is_laid_out_trains_and_is_copied(tied: Tied) -> None:
    with torch.inference_mode():  # as decoding does
        lay_out(tied)
    tied.columns.square().sum().backward()
    torch.optim.SGD(tied.parameters(), lr=1.0).step()
    again = copy.deepcopy(tied)
    assert torch.equal(again.columns, tied.columns)
    assert again.columns.data_ptr() != tied.columns.data_ptr()


def test_a_model_is_laid_out_once_and_as_far_as_it_fits_and_gains(tied: Tied, monkeypatch: pytest.MonkeyPatch) -> None:
    other, places = copy.deepcopy(tied), addresses(tied)
    monkeypatch.setattr(layout, "free_memory", lambda: 100)
    lay_out(tied)
    assert addresses(tied) == places
    monkeypatch.undo()
    lay_out(tied)
    assert addresses(tied) == places
    places = addresses(other)
    lay_out(other)  # of a few bytes: only what is not stored in rows
    assert {name for name, place in addresses(other).items() if place != places[name]} == {"columns"}


def test_what_several_models_share_is_laid_out_once(tied: Tied) -> None:
    other = copy.deepcopy(tied)
    other.columns = tied.columns
    lay_out(tied, other)
    assert tied.columns is other.columns
    places = addresses(tied), addresses(other)
    assert {name for name in places[0] if places[0][name] == places[1][name]} == {"columns"}
    lay_out(tied)
    lay_out(other)
    assert (addresses(tied), addresses(other)) == places


def test_matrices_become_rows_where_free_memory_is_unknown(tied: Tied, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows, which have no huge pages of this kind either."""
    monkeypatch.setattr(huge_pages, "possible", lambda: False)
    monkeypatch.setattr(layout, "free_memory", lambda: None)
    lay_out(tied)
    assert tied.columns.is_contiguous()


def test_blocks_are_separate_and_aligned() -> None:
    first, second, third = huge_pages.blocks([100, 64, 5000])
    assert [t.numel() for t in (first, second, third)] == [100, 64, 5000]
    assert first.data_ptr() % huge_pages.SIZE == 0
    assert third.data_ptr() % huge_pages.ALIGNMENT == 0
    assert not first.any()
    assert not third.any()
    first.fill_(7)
    assert not third.any()
    assert first.untyped_storage().data_ptr() != third.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("text", "expected"), [("always [madvise] never", True), ("[always] madvise never", True), ("a [never]", False)]
)
@pytest.mark.usefixtures("nothing_turned_off")
def test_the_system_tells_whether_it_has_huge_pages(text: str, expected: bool, tmp_path: Path) -> None:
    setting = tmp_path / "enabled"
    assert not huge_pages.possible(tmp_path / "none")
    setting.write_text(text)
    assert huge_pages.possible(setting) is (expected and hasattr(huge_pages.mmap, "MADV_HUGEPAGE"))
