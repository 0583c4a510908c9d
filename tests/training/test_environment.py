"""The paths that the ops took are kept from one start to the next, and what is different at another start is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.ops.clock import forget_choices
from tests.training.kill_storm import STEPS, small_recipe

from qkv.ops.selection import choices
from qkv.training.environment import Environment
from qkv.training.loop import train
from qkv.training.watch.events import Event, Notice, Stepped

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def separate_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins as a process does: nothing is chosen yet."""
    forget_choices(monkeypatch)


def choose(twin: str) -> str:
    return choices.choose(
        "some op", "some case", lambda: choices.Choice("some op", "some case", twin, "measured", 1.5)
    ).twin


def test_the_next_start_takes_the_same_paths(tmp_path: Path) -> None:
    choose("quick")
    Environment(tmp_path, CPU, choices.table()).keep()
    choices.table().choices.clear()
    assert Environment(tmp_path, CPU, choices.table()).adopt() == ""
    assert choose("slow") == "quick"


def test_a_folder_without_paths_changes_nothing(tmp_path: Path) -> None:
    assert Environment(tmp_path, CPU, choices.table()).adopt() == ""
    assert choices.all_choices() == []


def test_the_file_is_written_only_when_a_path_is_new(tmp_path: Path) -> None:
    environment = Environment(tmp_path, CPU, choices.table())
    choose("quick")
    environment.keep()
    environment.path.unlink()
    environment.keep()
    assert not environment.path.exists()
    choices.choose("some op", "another case", lambda: choices.Choice("some op", "another case", "slow", "measured"))
    environment.keep()
    assert environment.path.exists()


def test_other_threads_are_said_and_nothing_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose("quick")
    Environment(tmp_path, CPU, choices.table()).keep()
    choices.table().choices.clear()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    sentence = Environment(tmp_path, CPU, choices.table()).adopt()
    assert sentence == (
        "the losses may differ in their last digits from here on, "
        "because the environment has changed since the run was last started: threads 1 before, 64 now"
    )
    assert choose("slow") == "slow"


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "surroundings.json").write_text("{")
    assert (
        "cannot be read, so the fastest implementations are measured anew"
        in Environment(tmp_path, CPU, choices.table()).adopt()
    )


def test_a_run_that_was_cut_before_its_first_checkpoint_keeps_its_paths(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    def crash(event: Event) -> None:
        if isinstance(event, Stepped):
            choose("quick")
            if event.step == 3:
                raise Crash

    with pytest.raises(Crash):
        train(small_recipe(text, STEPS), tmp_path / "run", on_event=crash)
    events: list[Event] = []
    chosen = []

    def listen(event: Event) -> None:
        events.append(event)
        chosen.append(choose("slow"))

    train(small_recipe(text, 5, schedule="cosine(warmup=5)"), tmp_path / "run", on_event=listen)
    assert set(chosen) == {"quick"}
    assert not [event for event in events if isinstance(event, Notice)]


def test_two_runs_in_one_process_have_tables_of_their_own(text: Path, tmp_path: Path) -> None:
    """Each run stores and restores its own choice, also if another run and the process choose otherwise meanwhile."""
    assert choose("of the process") == "of the process"

    def go_on(name: str, steps: int, quick: str) -> set[str]:
        chosen = []
        recipe = small_recipe(text, steps, schedule="constant(warmup=1)")
        train(recipe, tmp_path / name, on_event=lambda event: chosen.append(choose(quick)))
        return set(chosen)

    assert (go_on("a", 2, "tiled"), go_on("b", 2, "fused")) == ({"tiled"}, {"fused"})
    assert (go_on("b", 4, "tiled"), go_on("a", 4, "fused")) == ({"fused"}, {"tiled"})
    stored = {
        name: json.loads((tmp_path / name / "resume" / "surroundings.json").read_bytes())["paths"] for name in "ab"
    }
    own = {name: [choice["twin"] for choice in paths if choice["op"] == "some op"] for name, paths in stored.items()}
    assert own == {"a": ["tiled"], "b": ["fused"]}
    assert [choice.twin for choice in choices.all_choices()] == ["of the process"]
