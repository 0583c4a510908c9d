"""Teams of OpenMP threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

from qkv.system import openmp

TASKS = Path("/proc/self/task")


@pytest.mark.skipif(not TASKS.is_dir() or openmp._pause() is None, reason="threads are counted on Linux with libgomp")
def test_a_released_team_has_no_threads_and_starts_again() -> None:
    counts = list[int]()

    def compute() -> None:
        torch.set_num_threads(2)
        for released in (False, True, False):
            if released:
                openmp.release_team()
            else:
                assert torch.ones(1 << 22).cumsum(0).add(1)[-1] == (1 << 22) + 1
            counts.append(len(os.listdir(TASKS)))

    before = torch.get_num_threads()
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    torch.set_num_threads(before)
    assert counts[1] == counts[0] - 1
    assert counts[2] == counts[0]


@pytest.mark.parametrize("present", [True, False])
def test_settings_stay_and_other_libraries_are_left_alone(present: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()
    monkeypatch.setattr(openmp, "_pause", lambda: calls.append if present else None)
    openmp.release_team()
    assert calls == [1] * present
