"""Keys and values in pages against a dense store that goes through the same, and what becomes of every page."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.state import pages
from qkv.state.arrival import Arrival, Counts
from qkv.state.pages import MemoryPage, Paged
from qkv.state.store import Dense, new_store
from qkv.state.tree import join, map_tensors, nbytes, one_row, overwrite, rows

HEADS, WIDTHS, SIZE = 2, (3, 5), 4
PAGE = 8 * HEADS * SIZE * sum(WIDTHS)
"""Bytes of a page in float64."""


@pytest.fixture(autouse=True)
def alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[weakref.WeakSet[MemoryPage]]:
    """All pages that exist; after the test none may be left."""
    found, original = weakref.WeakSet[MemoryPage](), MemoryPage.__init__

    def noted(self: MemoryPage, data: Tensor) -> None:
        original(self, data)
        found.add(self)

    monkeypatch.setattr(MemoryPage, "__init__", noted)
    monkeypatch.setattr(pages, "PAGE", SIZE)
    yield found
    gc.collect()
    assert not list(found)


def paged(count: int) -> Paged:
    """Empty store of ``count`` rows in small pages."""
    dense = new_store(count, HEADS, WIDTHS, torch.zeros(1, dtype=torch.float64))
    assert isinstance(dense, Dense)
    return Paged.instead(dense)


def written(store: Paged, past: list[int], came: list[int], seed: int = 0) -> Paged:
    """``store`` after other random numbers of positions came to its rows."""
    arrival = Arrival(Counts(past), max(1, *came), Counts(came))
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(len(past), HEADS, arrival.count, w, generator=generator) for w in WIDTHS)
    store.append(keys.double(), values.double(), arrival)
    return store


def assert_counted(stores: list[Paged]) -> None:
    """Holders are counted right: places of a row, and rows of a page."""
    places = [row for store in stores for row in store._rows]
    own = {id(row): row for row in places}.values()
    for row in own:
        assert row.holders == sum(each is row for each in places)
        for page in row.pages:
            assert page.holders == sum(page is other for each in own for other in each.pages)


@dataclass
class Both:
    """The same rows in both stores, and their lengths."""

    dense: Dense
    pages: Paged
    lengths: list[int]

    def check(self) -> bool:
        """Raise AssertionError where the rows differ."""
        found = self.pages.gathered(max(self.lengths, default=0))
        for row, length in enumerate(self.lengths):
            for got, expected in zip(found, (self.dense.keys, self.dense.values), strict=True):
                assert torch.equal(got[row, :, :length], expected[row, :, :length])
            assert len(self.pages._rows[row].pages) == -(-length // SIZE)
        return True


def fresh(count: int) -> Both:
    return Both(new_store(count, HEADS, WIDTHS, torch.zeros(1, dtype=torch.float64)), paged(count), [0] * count)  # type: ignore[arg-type]


def appended(both: Both, chance: random.Random) -> None:
    rows_, count = len(both.lengths), chance.randint(1, 9)
    ragged = chance.random() < 0.7
    came = [chance.randint(0, count) if ragged else count for _ in range(rows_)]
    arrival = Arrival(Counts(both.lengths), count, Counts(came) if ragged else None)
    keys, values = (torch.randn(rows_, HEADS, count, width, dtype=torch.float64) for width in WIDTHS)
    views = [store.append(keys, values, arrival) for store in (both.dense, both.pages)]
    both.lengths = [a + b for a, b in zip(both.lengths, came, strict=True)]
    for a, b in zip(views[0][:2], views[1][:2], strict=True):
        assert a.shape == b.shape
        for row, length in enumerate(both.lengths):
            assert torch.equal(a[row, :, :length], b[row, :, :length])


OPERATIONS = ["append", "append", "append", "rows", "fork", "join", "overwrite", "cut", "one", "map", "drop"]


def carried_out(chance: random.Random, several: list[Both]) -> None:
    """One random operation on one of ``several``, which stay as they were but for it."""
    at = chance.randrange(len(several))
    both = several[at]
    count = len(both.lengths)
    match chance.choice(
        ["append", "append", "append", "rows", "fork", "join", "overwrite", "cut", "one", "map", "drop"]
    ):
        case "append":
            appended(both, chance)
        case "rows" | "fork" as kind:
            index = [chance.randrange(count) for _ in range(chance.randint(1, 4))]
            new = Both(rows(both.dense, index), rows(both.pages, index), [both.lengths[i] for i in index])
            several.append(new) if kind == "fork" else several.__setitem__(at, new)
        case "one":
            row = chance.randrange(count)
            length = both.lengths[row]
            several.append(Both(one_row(both.dense, row, length), one_row(both.pages, row, length), [length]))
        case "join":
            other = chance.choice(several)
            stores = join(both.dense, other.dense), join(both.pages, other.pages)
            several[at] = Both(*stores, both.lengths + other.lengths)
        case "overwrite" if count > 1:
            to, source = chance.sample(range(count), 2)
            both.dense, both.pages = overwrite(both.dense, [to], [source]), overwrite(both.pages, [to], [source])
            both.lengths[to] = both.lengths[source]
        case "cut":
            both.lengths = [chance.randint(0, length) for length in both.lengths]
            both.pages = both.pages.cut(Counts(both.lengths))
        case "map":
            both.dense, both.pages = map_tensors(Tensor.clone, both.dense), map_tensors(Tensor.clone, both.pages)
        case "drop" if len(several) > 1:
            del several[at]
        case _:
            pass


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_whatever_happens_rows_hold_what_dense_ones_do(seed: int) -> None:
    torch.manual_seed(seed)
    chance, several = random.Random(seed), [fresh(2)]
    for _ in range(25):
        carried_out(chance, several)
        if sum(len(both.lengths) for both in several) > 16:
            several = several[-1:]
        assert all(both.check() for both in several)
        assert_counted([both.pages for both in several])


def test_a_row_takes_pages_for_its_own_positions_only(alive: weakref.WeakSet[MemoryPage]) -> None:
    store = written(paged(3), [0, 0, 0], [1, 4, 30])
    assert nbytes(store) == (1 + 1 + 8) * PAGE
    assert len(alive) == 10
    store = written(store, [1, 4, 30], [3, 1, 0])
    assert nbytes(store) == (1 + 2 + 8) * PAGE


def test_forks_share_pages_until_they_write() -> None:
    store = written(paged(1), [0], [10])
    forked = rows(store, [0, 0, 0])
    assert nbytes([store, forked]) == 3 * PAGE
    del store
    written(forked, [10, 10, 10], [1, 1, 0], seed=1)
    assert nbytes(forked) == (2 + 3) * PAGE, "two full pages of all, and the third of each"
    written(forked, [11, 11, 10], [0, 0, 2], seed=2)
    assert nbytes(forked) == (2 + 3) * PAGE, "the last one with the third page wrote there itself"


def test_rows_that_stay_are_not_copied(alive: weakref.WeakSet[MemoryPage]) -> None:
    """Rows that leave and join move no page, and those that stay write on where they are."""
    store = written(paged(3), [0, 0, 0], [6, 9, 3])
    before = {id(page) for page in alive}
    store = join(rows(store, [2, 0]), paged(1))
    gc.collect()
    assert {id(page) for page in alive} < before
    assert len(alive) == 1 + 2
    written(store, [3, 6, 0], [1, 1, 0])
    assert {id(page) for page in alive} < before


def test_a_kept_row_may_outlive_its_batch() -> None:
    store = written(paged(2), [0, 0], [6, 9])
    expected = store.gathered(9)[0][1].clone()
    kept = one_row(store, 1, 9)
    written(store, [6, 9], [5, 5], seed=3)
    store.cut(Counts((2, 3)))
    written(store, [2, 3], [9, 9], seed=4)
    del store
    assert torch.equal(kept.gathered(9)[0][0], expected)
    assert nbytes(kept) == 3 * PAGE


def test_addresses_are_those_of_the_pages() -> None:
    """Also where pages came, were copied before they were written to, and were given back."""
    store = paged(2)
    for past, came in (([0, 0], [3, 5]), ([3, 5], [1, 0]), ([4, 5], [60, 1])):
        forked = rows(store, [0, 1])
        found = store.room(Arrival(Counts(past), max(came), Counts(came)))
        for row, addresses in zip(store._rows, found.tolist(), strict=True):
            held = [page.data.data_ptr() for page in row.pages]
            assert addresses == held + [0] * (len(addresses) - len(held))
        assert len(store._rows[0].pages) == pages.pages_for(past[0] + came[0], SIZE)
        assert all(page.holders == 1 for row in store._rows for page in row.pages[past[0] // SIZE :])
        del forked
    store.cut(Counts((5, 0)))
    assert (store.room(Arrival(Counts((5, 0)), 1, Counts((0, 0)))) != 0).sum(1).tolist() == [2, 0]
