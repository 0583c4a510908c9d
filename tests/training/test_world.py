"""Several processes that train one run decide alike, and the first alone writes."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import torch
from tests.training.two_processes import CUT

from qkv.ops.selection.choices import Choice, ChoiceTable, choose, using
from qkv.runs.storage.checkpoint import Checkpoint, CheckpointStore
from qkv.runs.storage.folder import locked
from qkv.system.errors import UserError
from qkv.system.world import World
from qkv.training.interrupt import StopNow, StopRequest
from qkv.training.watch.record import RunRecorder, SilentRecorder

T = TypeVar("T")


class Second(World):
    """The second of two processes, for which the test says what the first one sends."""

    rank, size = 1, 2

    def __init__(self, *sent: Any, others: Sequence[float] = (0, 0)):
        self.sent, self.others = list(sent), others

    def agree(self, value: T) -> T:
        return self.sent.pop(0)

    def lead(self, work: Callable[[], T]) -> T:
        return self.sent.pop(0)

    def sum(self, values: Sequence[float]) -> Sequence[float]:
        return [a + b for a, b in zip(values, self.others, strict=True)]


def test_a_measured_choice_is_that_of_the_first_process() -> None:
    """A choice by shapes is the same everywhere, and costs no exchange."""
    sent = Choice("op", "case", "b", "measured", 2.0)
    with using(ChoiceTable(Second(sent))) as table:
        assert choose("op", "case", lambda: Choice("op", "case", "a", "measured"), ("a", "b")) is sent
        assert choose("op", "case", lambda: Choice("op", "case", "a", "measured"), ("a", "b")) is sent
        assert choose("op", "small", lambda: Choice("op", "small", "a", "by its shape")).twin == "a"
    assert [choice.twin for choice in table.choices.values()] == ["b", "a"]


def test_a_process_chooses_alone_for_what_others_do_not_compute() -> None:
    """The second process has no exchange to answer, and would wait or take another one's value."""
    own = Choice("op", "case", "a", "measured")
    with using(ChoiceTable(Second())) as table, using(table.aside()) as aside:
        assert choose("op", "case", lambda: own, ("a", "b")).twin == "a"
    assert aside.choices
    assert not table.choices
    assert (alone := ChoiceTable()).aside() is alone


def test_choices_made_apart_become_those_of_the_first_process_that_made_them() -> None:
    first, second = (Choice("op", case, "a", "measured") for case in ("x", "y"))
    other = Choice("op", "x", "b", "measured")

    class Meeting(Second):
        """The second of three processes, of which the others made ``first`` and ``other``."""

        def gather(self, value: T) -> list[T]:
            return cast("Any", [[(("op", "x"), first)], value, [(("op", "x"), other), (("op", "z"), other)]])

    with using(ChoiceTable(Meeting(others=(3,)))) as table:
        with table.apart():
            assert choose("op", "y", lambda: second, ("a", "b")) == second
            choose("op", "x", lambda: other, ("a", "b"))
        assert {case: choice.twin for (_, case), choice in table.choices.items()} == {"x": "a", "y": "a", "z": "b"}


def test_a_signal_to_another_process_stops_this_one() -> None:
    with StopRequest(Second(others=(0, 0))) as stop:
        assert not stop
    with StopRequest(Second(others=(0, 1))) as stop:
        assert stop
        assert (stop.signal, str(stop)) == (signal.SIGTERM, "SIGTERM")


def test_no_process_leaves_work_that_the_others_go_on_with() -> None:
    with StopRequest(Second()) as stop:
        with stop.at_once():
            os.kill(os.getpid(), signal.SIGINT)  # alone, it would raise here
        with pytest.raises(StopNow), stop.at_once():
            pytest.fail("the signal came before")


def test_another_process_writes_no_checkpoint_and_reads_that_of_the_first(tmp_path: Path) -> None:
    tensors = {part: {"a": torch.ones(1)} for part in ("weights", "optimizer", "random")}
    for step in (1, 2):
        CheckpointStore(tmp_path).save(Checkpoint(step, tensors, {}))
    before = sorted(tmp_path.iterdir())
    store = CheckpointStore(tmp_path, 2, Second(tmp_path, 1, None))
    store.save(Checkpoint(3, tensors, {}))
    assert sorted(tmp_path.iterdir()) == before
    checkpoint = store.load(pytest.fail)
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert store.load(pytest.fail) is None


def test_the_first_process_locks_for_all(tmp_path: Path) -> None:
    with locked(tmp_path), locked(tmp_path, Second(None)), pytest.raises(UserError), locked(tmp_path):
        pass


def test_a_silent_recorder_leaves_out_nothing_that_writes() -> None:
    """``add`` writes through ``row``."""
    public = {name for name, _ in inspect.getmembers(RunRecorder, inspect.isfunction) if not name.startswith("_")}
    assert public - {"add"} == {name for name in vars(SilentRecorder) if not name.startswith("_")}


@pytest.fixture(scope="module")
def decisions(text: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes decided."""
    folder = tmp_path_factory.mktemp("world")
    command = [sys.executable, "-m", "tests.training.two_processes"]
    environment = os.environ | {"QKV_WITHOUT": "native"}  # nothing is compiled, which would take most of the time
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(folder), str(text)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    try:
        errors = [process.communicate(timeout=600)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return [json.loads((folder / f"{rank}.json").read_bytes()) for rank in (0, 1)]


@pytest.mark.slow
def test_two_processes_decide_alike_whatever_their_clocks_and_timings_say(decisions: list[dict[str, Any]]) -> None:
    first, second = decisions
    for name in ("planned", "steps", "precision", "weights"):
        assert first["alone"][name] != second["alone"][name], f"alone, they would not differ in {name}"
    assert first["cut"] == second["cut"]
    assert first["resumed"] == second["resumed"]
    assert first["cut"]["planned"] + first["resumed"]["planned"][-1:] == [
        *first["alone"]["planned"],
        first["alone"]["planned"][-1],
    ]
    assert first["resumed"]["precision"] == first["alone"]["precision"]


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_after_the_same_step(decisions: list[dict[str, Any]]) -> None:
    """And the run goes on to its end; ``tests/parallel`` compares its weights with those of one process."""
    for decided in decisions:
        assert (decided["cut"]["steps"], decided["cut"]["signal"]) == (CUT, "SIGTERM")
        assert f"stopped by SIGTERM after step {CUT}" in decided["cut"]["message"]
    assert decisions[1]["resumed"]["steps"] == decisions[0]["alone"]["steps"] > CUT
    assert decisions[1]["resumed"]["weights"] == decisions[0]["resumed"]["weights"] != ""


@pytest.mark.slow
def test_only_the_first_process_writes(decisions: list[dict[str, Any]]) -> None:
    assert len(decisions[0]["writes"]) > 20
    assert decisions[1]["writes"] == []
