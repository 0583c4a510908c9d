"""A run that is cut anywhere against one that is left alone; another recipe, text or disk under a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.training.kill_storm import STEPS, differences, ignore, small_recipe, write_text

from qkv.runs.storage.files import read_tensors
from qkv.runs.storage.folder import locked
from qkv.spec.files.overrides import override
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.training.loop import train
from qkv.training.watch.events import Event, Notice, Saved, Stepped, Validated


class Crash(BaseException):
    """Ends a run where it stands, as a power cut would."""


def crash_at(step: int, kind: type[Event] = Stepped) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        if isinstance(event, kind) and event.step == step:  # type: ignore[union-attr]
            raise Crash

    return tell


def cut_run(text: Path, folder: Path, **training: Any) -> Recipe:
    """A run that stopped after step 9, with a checkpoint of step 7."""
    recipe = small_recipe(text, STEPS, **training)
    with pytest.raises(Crash):
        train(recipe, folder, on_event=crash_at(9))
    return recipe


@pytest.mark.parametrize(
    ("kind", "step"),
    [(Stepped, 3), (Stepped, 7), (Saved, 7), (Stepped, 13), (Validated, 10), (Saved, 21), (Validated, 24), (Saved, 24)],
)
def test_a_run_that_was_cut_goes_on_bit_for_bit(
    text: Path, straight: Path, tmp_path: Path, kind: type[Event], step: int
) -> None:
    recipe = small_recipe(text, STEPS)
    with pytest.raises(Crash):
        train(recipe, tmp_path / "run", on_event=crash_at(step, kind))
    train(recipe, tmp_path / "run", on_event=ignore)
    assert differences(straight, tmp_path / "run") == []


@pytest.mark.parametrize(
    "training",
    [
        {"precision": "bf16"},
        {"recompute": True},
        {"optimizer": "adamw", "schedule": "warmup_stable_decay(warmup=3)"},
        {"accumulate": 1, "clip_norm": None},
    ],
    ids=["bf16", "recompute", "adamw", "unclipped"],
)
def test_every_setting_goes_on_bit_for_bit(text: Path, tmp_path: Path, training: dict[str, Any]) -> None:
    recipe = small_recipe(text, 16, **training)
    train(recipe, tmp_path / "straight", on_event=ignore)
    for step in (9, 15):
        with pytest.raises(Crash):
            train(recipe, tmp_path / "cut", on_event=crash_at(step))
    train(recipe, tmp_path / "cut", on_event=ignore)
    assert differences(tmp_path / "straight", tmp_path / "cut") == []


@pytest.mark.parametrize("batching", ["packed(separator='.')", "length_buckets(separator='.', buckets=3)"])
def test_every_layout_goes_on_bit_for_bit(text: Path, tmp_path: Path, batching: str) -> None:
    recipe = small_recipe(text, 16).changed(data={"source": str(text), "batching": batching})
    train(recipe, tmp_path / "straight", on_event=ignore)
    with pytest.raises(Crash):
        train(recipe, tmp_path / "cut", on_event=crash_at(12))
    train(recipe, tmp_path / "cut", on_event=ignore)
    assert differences(tmp_path / "straight", tmp_path / "cut") == []


@pytest.mark.parametrize("balance", ["loss(coefficient=0.1)", "bias(rate=0.1)"])
def test_a_mixture_of_experts_goes_on_bit_for_bit(text: Path, tmp_path: Path, balance: str) -> None:
    mixture = f"mixture_of_experts(num_experts=4, hidden=8, balance={balance})"
    recipe = override(small_recipe(text, STEPS), [f"model.blocks.0.branches.2={mixture}"])
    straight = train(recipe, tmp_path / "straight", on_event=ignore)
    with pytest.raises(Crash):
        train(recipe, tmp_path / "run", on_event=crash_at(9))
    train(recipe, tmp_path / "run", on_event=ignore)
    assert differences(tmp_path / "straight", tmp_path / "run") == []
    biases = [buffer for name, buffer in straight.model.named_buffers() if name.endswith("balance.bias")]
    assert all(bias.any() for bias in biases)
    assert bool(biases) == balance.startswith("bias")


def test_a_finished_run_says_so_and_does_nothing(text: Path, straight: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in straight.rglob("*")}
    events: list[Event] = []
    run = train(small_recipe(text, STEPS), straight, on_event=events.append)
    assert events == [Notice(f"the run in {straight} is finished: all {STEPS} steps are done")]
    assert {p: p.stat().st_mtime_ns for p in straight.rglob("*")} == before
    assert run.step == read_tensors(straight / "model.safetensors")[1]["step"]


def test_steps_can_be_raised_where_the_schedule_does_not_look_ahead(text: Path, tmp_path: Path) -> None:
    long = small_recipe(text, 20, schedule="constant(warmup=3)")
    train(long, tmp_path / "long", on_event=ignore)
    train(small_recipe(text, 10, schedule="constant(warmup=3)"), tmp_path / "raised", on_event=ignore)
    train(long, tmp_path / "raised", on_event=ignore)
    assert [d for d in differences(tmp_path / "long", tmp_path / "raised") if d != "metrics.jsonl"] == []


def test_steps_cannot_be_raised_where_the_past_would_have_been_another(text: Path, straight: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"training\.steps: .* has 24 steps and cannot be continued to 48, "
        r".* other learning rates under the schedule 'cosine'",
    ):
        train(small_recipe(text, 48), straight, on_event=ignore)


def test_another_recipe_over_the_same_folder_names_the_first_difference(text: Path, straight: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in straight.rglob("*")}
    with pytest.raises(
        UserError, match=r"another recipe: training\.batch_size is 3 there and 5 here; name another folder"
    ):
        train(small_recipe(text, STEPS, batch_size=5), straight, on_event=ignore)
    with pytest.raises(UserError, match=r"training\.optimizer\.kind is \"muon\" there and \"adamw\" here"):
        train(small_recipe(text, STEPS, optimizer="adamw"), straight, on_event=ignore)
    with pytest.raises(UserError, match=r"already holds a run; name another folder"):
        train(small_recipe(text, STEPS), straight, resume=False, on_event=ignore)
    assert {p: p.stat().st_mtime_ns for p in straight.rglob("*")} == before


def test_what_does_not_decide_the_weights_may_change(text: Path, straight: Path, tmp_path: Path) -> None:
    cut_run(text, tmp_path / "run")
    other = small_recipe(text, STEPS, checkpoints={"every": 5}, validation={"every": 8}).changed(name="new name")
    train(other, tmp_path / "run", on_event=ignore)
    assert [d for d in differences(straight, tmp_path / "run") if d.startswith("resume")] == []
    assert "name: new name" in (tmp_path / "run" / "spec.yaml").read_text()


def test_an_edited_spec_file_is_noticed(text: Path, tmp_path: Path) -> None:
    recipe = cut_run(text, tmp_path / "run")
    path = tmp_path / "run" / "spec.yaml"
    path.write_text(path.read_text().replace("beta1: 0.9", "beta1: 0.8"))
    edited = read_recipe(tmp_path / "run")
    assert edited.training != recipe.training
    with pytest.raises(UserError, match=r"spec\.yaml was changed after training began"):
        train(edited, tmp_path / "run", on_event=ignore)


def test_another_text_under_the_same_name_is_noticed(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    recipe = cut_run(text, tmp_path / "run")
    text.write_text(text.read_text()[::-1])
    with pytest.raises(
        UserError,
        match=r"the token ids of .*text\.txt.* differ from those that the run in .* was trained on: "
        r"the data or a file of the vocabulary was changed",
    ):
        train(recipe, tmp_path / "run", on_event=ignore)


def test_a_torn_checkpoint_costs_only_the_steps_since_the_one_before(
    text: Path, straight: Path, tmp_path: Path
) -> None:
    recipe = small_recipe(text, STEPS)
    with pytest.raises(Crash):
        train(recipe, tmp_path / "run", on_event=crash_at(16))
    torn = tmp_path / "run" / "resume" / "step-00000014" / "optimizer.safetensors"
    torn.write_bytes(torn.read_bytes()[:-100])
    events: list[Event] = []
    train(recipe, tmp_path / "run", on_event=events.append)
    assert isinstance(events[0], Notice)
    assert events[0].text.startswith(f"{torn} is truncated")
    assert "resuming from the previous checkpoint, step 7" in events[0].text
    assert differences(straight, tmp_path / "run") == []


def test_a_full_disk_stops_the_run_and_nothing_that_was_saved_is_lost(
    text: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, folder = small_recipe(text, STEPS), tmp_path / "run"
    real = os.fsync

    def full(handle: int) -> None:
        if (folder / "resume" / "step-00000007").exists():
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="cannot be written: the disk is full"):
        train(recipe, folder, on_event=ignore)
    monkeypatch.undo()
    train(recipe, folder, on_event=ignore)
    assert differences(straight, folder) == []


def test_a_file_where_the_folder_should_be(text: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(
        UserError, match=r"^the run folder .*run cannot be written: a file exists where a folder is needed"
    ):
        train(small_recipe(text, STEPS), tmp_path / "run", on_event=ignore)
    assert (tmp_path / "run").read_text() == "mine"


def test_a_read_only_run_folder(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_run(text, tmp_path / "run")
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(tmp_path / "run")):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(
        UserError, match=r"metrics\.jsonl cannot be written: the folder is read-only or belongs to another user"
    ):
        train(small_recipe(text, STEPS), tmp_path / "run", on_event=ignore)


def test_a_finished_run_in_a_read_only_folder_is_loaded(
    text: Path, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        assert not flags & (os.O_WRONLY | os.O_RDWR), f"{path} was opened for writing"
        return real(path, flags, *args, **kwargs)

    real = os.open
    monkeypatch.setattr(os, "open", refuse)
    assert train(small_recipe(text, STEPS), straight, on_event=ignore).step in (10, 20, 24)


def test_two_processes_cannot_train_in_one_folder(text: Path, tmp_path: Path) -> None:
    with locked(tmp_path / "run"), pytest.raises(UserError, match="another process is training in"):
        train(small_recipe(text, STEPS), tmp_path / "run", on_event=ignore)
