"""A pause of the garbage collector ends as it began, also by an error."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress

import pytest

from qkv.system.collector import collect_once, paused


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before(enabled: bool) -> None:
    before, frozen, seen = gc.isenabled(), gc.get_freeze_count(), list[bool]()
    (gc.enable if enabled else gc.disable)()
    try:
        with suppress(RuntimeError), paused():
            seen.append(gc.isenabled())
            raise RuntimeError
        assert seen == [False]
        assert gc.isenabled() == enabled
        assert (gc.get_freeze_count() > frozen) == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_what_is_alive_is_left_out_of_later_collections() -> None:
    class Node:
        """Node of a cycle."""

    gone, kept = Node(), [Node()]
    gone.itself, reference = gone, weakref.ref(gone)  # type: ignore[attr-defined]
    del gone
    collect_once()
    assert reference() is None
    assert gc.get_freeze_count() > 0
    assert not any(each is kept for each in gc.get_objects())
