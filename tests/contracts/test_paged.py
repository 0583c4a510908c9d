"""Pages of keys and values behind the protocol of stores: no mixer knows of them, and the contract is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.contracts import battery
from tests.contracts.battery import CHECKS, assert_kept
from tests.contracts.faults import instead
from tests.contracts.samples import STACKS
from tests.contracts.subjects import OneBranch, Stack

from qkv.mixers.attention import attention
from qkv.spec.branches import Attention
from qkv.spec.parts import Alibi
from qkv.state import pages
from qkv.state.pages import Paged
from qkv.state.store import Dense, Store

ASKED = ("cut anywhere", "ragged rows", "rows: reorder, drop, fork", "join", "rewind")


SIZE = 4


def in_pages(original: Callable[..., Store]) -> Callable[..., Store]:
    """Pages in place of a dense store."""

    def new(*args: Any) -> Store:
        store = original(*args)
        assert type(store) is Dense
        return Paged.instead(store)

    return new


def gathered(state: Any) -> Any:
    """``state`` with dense stores in place of pages, so that states can be compared."""
    if isinstance(state, Paged):
        longest = max((SIZE * len(row.pages) for row in state._rows), default=0)
        return Dense(*state.gathered(longest))
    if isinstance(state, tuple):
        parts = [gathered(part) for part in state]  # pyright: ignore[reportUnknownVariableType]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)  # pyright: ignore[reportUnknownVariableType]
    return state


def holds_pages(state: Any) -> bool:
    return isinstance(state, Paged) or (isinstance(state, tuple) and any(map(holds_pages, state)))  # pyright: ignore[reportUnknownArgumentType]


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize(
    "subject", [lambda: OneBranch(Attention(num_heads=2, relative=Alibi())), lambda: Stack(STACKS["plain"])]
)
def test_pages_keep_the_contract(name: str, subject: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    same_state, compared = battery.same_state, list[bool]()

    def same(got: Any, expected: Any, **more: Any) -> None:
        compared.append(holds_pages(got))
        same_state(gathered(got), gathered(expected), **more)

    monkeypatch.setattr(battery, "same_state", same)
    monkeypatch.setattr(pages, "PAGE", SIZE)
    assert name in CHECKS
    with instead(attention, "new_store", in_pages)():
        assert_kept(name, subject())
    assert all(compared)
    assert compared or name == "rewind", "which compares no states"
