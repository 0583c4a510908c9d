"""A pause of the garbage collector ends as it began, also by an error."""

from __future__ import annotations

import gc
from contextlib import suppress

import pytest

from qkv.system.collector import paused


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
        gc.unfreeze()
        (gc.enable if before else gc.disable)()
