"""A store of another kind behind the protocol: pages of a pool that rows share. No mixer knows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from tests.contracts.battery import CHECKS, assert_kept
from tests.contracts.faults import instead
from tests.contracts.samples import STACKS
from tests.contracts.subjects import OneBranch, Stack
from torch import Tensor

from qkv.mixers import key_value
from qkv.spec.branches import Attention
from qkv.spec.parts import Alibi
from qkv.state.arrival import Arrival, Counts
from qkv.state.store import Store, View

PAGE = 4


class Paged(Store):
    """Pages (2, H, PAGE, D) of keys and values; a page table per row. A fork shares full pages and copies the last."""

    def __init__(self, tables: list[list[Tensor]], empty: Tensor):
        """``empty``: an empty page."""
        self.tables, self.empty = tables, empty

    def append(self, keys: Tensor, values: Tensor, arrival: Arrival) -> View:
        for row, table in enumerate(self.tables):
            while len(table) * PAGE < arrival.after[row]:
                table.append(self.empty.clone())
            for n, position in enumerate(range(arrival.past[row], arrival.after[row])):
                table[position // PAGE][:, :, position % PAGE] = torch.stack((keys[row, :, n], values[row, :, n]))
        most = max(1, *map(len, self.tables)) if self.tables else 1
        full = [torch.cat([*table, *[self.empty] * (most - len(table))], 2) for table in self.tables]
        gathered = torch.stack(full, 1)[:, :, :, : arrival.end]
        return View(gathered[0], gathered[1], torch.arange(arrival.end)[None], in_place=True)

    def map(self, change: Callable[[Tensor], Tensor]) -> Paged:
        return Paged([[change(page) for page in table] for table in self.tables], change(self.empty))

    def tensors(self) -> Iterator[Tensor]:
        yield from {id(page): page for table in self.tables for page in table}.values()
        yield self.empty

    def rows(self, index: Tensor) -> Paged:
        return Paged(
            [[*self.tables[i][:-1], *(page.clone() for page in self.tables[i][-1:])] for i in index.tolist()],
            self.empty,
        )

    def overwrite(self, to: Sequence[int], source: Sequence[int]) -> Paged:
        for a, b in zip(to, source, strict=True):
            self.tables[a] = self.rows(torch.tensor([b])).tables[0]
        return self

    def join(self, other: Paged) -> Paged:
        return Paged(
            [*self.rows(torch.arange(len(self.tables))).tables, *other.rows(torch.arange(len(other.tables))).tables],
            self.empty,
        )

    def cut(self, lengths: Counts) -> Paged:
        kept = Paged(
            [table[: -(-length // PAGE)] for table, length in zip(self.tables, lengths, strict=True)], self.empty
        )
        return kept.rows(torch.arange(len(self.tables)))


def paged(_: object) -> Callable[..., Store]:
    """Pages in place of the store that the branch asks for."""

    def new(batch: int, heads: int, widths: tuple[int, int], like: Tensor, *_: object) -> Store:
        return Paged([[] for _ in range(batch)], like.new_zeros(2, heads, PAGE, widths[0]))

    return new


ASKED = ("cut anywhere", "ragged rows", "rows: reorder, drop, fork", "join", "rewind")


@pytest.mark.parametrize("name", ASKED)
def test_a_paged_store_keeps_the_contract(name: str) -> None:
    """But for the leaves of its state, which are compared by shape elsewhere: here rows share pages."""
    assert name in CHECKS
    with instead(key_value, "new_store", paged)(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.contracts.battery.same_state", lambda *_, **__: None)
        assert_kept(name, OneBranch(Attention(num_heads=2, relative=Alibi())))
        assert_kept(name, Stack(STACKS["plain"]))


def test_forks_share_their_full_pages() -> None:
    with instead(key_value, "new_store", paged)():
        s = OneBranch(Attention(num_heads=2))
        _, state = s.call(s.inputs(1, 10), s.start(1))
    held = state.inner.nbytes
    forked = state.inner.rows(torch.tensor([0, 0, 0]))
    page = state.inner.empty.nbytes
    assert held == 4 * page
    assert forked.nbytes == held + 2 * page
