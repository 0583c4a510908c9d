"""Signals finish the step and save."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.training.kill_storm import STEPS, differences, ignore, small_recipe

from qkv.runs.metrics import rows_of
from qkv.training import loop
from qkv.training.interrupt import Interrupted
from qkv.training.loop import train
from qkv.training.watch.events import Ended, Event, Saved, Stepped


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_step_and_saves(
    text: Path, straight: Path, tmp_path: Path, number: signal.Signals
) -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    events: list[Event] = []

    def interrupt(event: Event) -> None:
        events.append(event)
        if isinstance(event, Stepped) and event.step == 9:
            os.kill(os.getpid(), number)

    recipe = small_recipe(text, STEPS)
    with pytest.raises(Interrupted, match="after step 9 of 24") as caught:
        train(recipe, tmp_path / "run", on_event=interrupt)
    assert caught.value.number == number
    assert events[-1] == Ended(
        "stopped", 9, f"stopped by {number.name} after step 9 of 24; the same command resumes it"
    )
    assert Saved(9) in events
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before
    assert "stopped by" in (tmp_path / "run" / "report.html").read_text()
    train(recipe, tmp_path / "run", on_event=ignore)
    assert differences(straight, tmp_path / "run") == []


def test_a_signal_during_validation_leaves_it_for_the_next_start(
    text: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop.measured

    def interrupted(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*args)

    monkeypatch.setattr(loop, "measured", interrupted)
    recipe = small_recipe(text, STEPS)
    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "run", on_event=ignore)
    assert not [row for row in rows_of(tmp_path / "run") if "val_loss" in row]
    monkeypatch.undo()
    train(recipe, tmp_path / "run", on_event=ignore)
    assert differences(straight, tmp_path / "run") == []


def test_a_signal_in_the_last_step_leaves_a_finished_run_and_still_ends_the_program(text: Path, tmp_path: Path) -> None:
    events: list[Event] = []

    def interrupt(event: Event) -> None:
        events.append(event)
        if isinstance(event, Stepped) and event.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="run is finished"):
        train(small_recipe(text, 4), tmp_path / "run", on_event=interrupt)
    assert events[-1] == Ended("finished", 4, "")


def test_a_second_ctrl_c_aborts_at_once(text: Path, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)

    def interrupt(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 9:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(small_recipe(text, STEPS), tmp_path / "run", on_event=interrupt)
    assert signal.getsignal(signal.SIGINT) == before
    assert [p.name for p in (tmp_path / "run" / "resume").glob("step-*")] == ["step-00000007"]


def test_training_runs_outside_the_main_thread(text: Path, tmp_path: Path) -> None:
    done: list[int] = []
    thread = threading.Thread(
        target=lambda: done.append(train(small_recipe(text, 4), tmp_path / "run", on_event=ignore).step)
    )
    thread.start()
    thread.join()
    assert done == [4]
