"""Steps that are recorded and replayed keep the contract: states of them are those of the parts."""

from __future__ import annotations

import pytest
from tests.contracts.battery import assert_kept
from tests.contracts.samples import STACKS
from tests.contracts.subjects import Stack
from tests.models.recorder import Recording

from qkv.models.fast.replayed_step import RECORDERS

ASKED = ("cut anywhere", "growth by doubling", "fixed capacity", "long sequences", "join")
"""Checks with several steps in a row on the same stores."""


@pytest.mark.parametrize("name", ASKED)
def test_replays_keep_the_contract(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECORDERS, "cpu", Recording)
    monkeypatch.setattr(Recording, "made", [])
    assert_kept(name, Stack(STACKS["plain"]))
    assert sum(recording.replays for recording in Recording.made) > 0
