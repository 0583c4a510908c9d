"""A spike whose update is skipped or rolled back, in a run that is left alone and in one that is cut."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.kill_storm import differences, ignore, small_recipe, write_text

from qkv.data.batching.batch import Batch
from qkv.lens.health.spikes import LONGEST, SpikeDetector, find_spikes, spike_limit
from qkv.runs.metrics import rows_of
from qkv.runs.storage.checkpoint import CheckpointStore
from qkv.spec.recipe import Recipe
from qkv.tasks.dataset import TextDataset
from qkv.training.loop import Trainer, train
from qkv.training.watch import spikes
from qkv.training.watch.events import Event, Notice, Saved, Stepped

SPIKE, STEPS = 34, 40


class Crash(BaseException):
    """Ends a run where it stands, as a power cut would."""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.txt")


@pytest.fixture(autouse=True)
def one_bad_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one batch ask for a token that the text has nowhere, and anchors be ten steps apart."""
    real = TextDataset.batch

    def batch(self: TextDataset, step: int) -> Batch:
        good = real(self, step)
        bad = step // 2 == SPIKE - 1  # two batches an update
        return replace(good, targets=torch.full_like(good.targets, 0)) if bad else good

    monkeypatch.setattr(TextDataset, "batch", batch)
    monkeypatch.setattr(spikes, "DISTANCE", 10)


def recipe_of(text: Path, action: str) -> Recipe:
    training = {"optimizer": "adamw(lr=0.003)", "schedule": "constant", "sample_every": 1000, "spikes": action}
    return small_recipe(text, STEPS, **training)


def losses(folder: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in rows_of(folder) if "loss" in row}


def test_the_limit_is_the_median_plus_eight_robust_deviations() -> None:
    values = [1.0, 1.2, 1.4, 1.6, 1.8] * 10
    assert spike_limit(values) == pytest.approx(1.4 + 8 * 1.4826 * 0.2)
    assert spike_limit([2.0] * 50) == pytest.approx(2.2)
    assert spike_limit([9.0] * 30 + [1.0] * 50) == pytest.approx(1.1)  # the last fifty only
    assert spike_limit([1.0] * 19) == float("inf")


def test_a_rise_that_stays_is_no_spike() -> None:
    level = [1.0] * 30
    assert find_spikes(range(40), [*level, 3.0, 3.0, *[1.0] * 8]) == [(30, 3.0, 1.1), (31, 3.0, 1.1)]
    assert find_spikes(range(60), [*level, *[3.0] * 30]) == []
    detector = SpikeDetector(level)
    assert [detector.read(3.0) for _ in range(LONGEST + 1)] == [True] * LONGEST + [False]


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_a_spike_has_no_effect_on_the_weights(text: Path, tmp_path: Path, action: str) -> None:
    events: list[Event] = []
    train(recipe_of(text, action), tmp_path / "run", on_event=events.append)
    decision = json.loads((tmp_path / "run" / spikes.DECISIONS).read_text())
    assert [(entry["step"], entry["action"]) for entry in decision] == [(SPIKE, action)]
    to = 30 if action == "rollback" else SPIKE - 1
    assert decision[0]["to"] == to
    sentences = [event.text for event in events if isinstance(event, Notice) and "a spike" in event.text]
    assert len(sentences) == 1
    assert f"step {SPIKE}: the loss is" in sentences[0]
    assert losses(tmp_path / "run")[SPIKE] > decision[0]["limit"]


def test_a_rollback_returns_to_the_weights_of_the_anchor(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, torch.Tensor] = {}
    real = Trainer._update

    def update(self: Trainer) -> None:
        real(self)
        seen[self.now.step] = self.model.frontend.table.detach().clone()  # type: ignore[union-attr]

    monkeypatch.setattr(Trainer, "_update", update)
    train(recipe_of(text, "rollback"), tmp_path / "run", on_event=ignore)
    assert torch.equal(seen[SPIKE], seen[30])
    assert not torch.equal(seen[SPIKE], seen[SPIKE - 1])
    assert not torch.equal(seen[SPIKE + 1], seen[31])  # the next batch, not the one after the anchor


def test_without_the_setting_the_update_is_made(text: Path, tmp_path: Path) -> None:
    recipe = recipe_of(text, "report")
    train(recipe, tmp_path / "report", on_event=ignore)
    train(recipe_of(text, "skip"), tmp_path / "skip", on_event=ignore)
    assert not (tmp_path / "report" / spikes.DECISIONS).exists()
    one, other = losses(tmp_path / "report"), losses(tmp_path / "skip")
    assert [one[step] == other[step] for step in (SPIKE, SPIKE + 1)] == [True, False]


@pytest.mark.parametrize(
    ("action", "kind", "step"),
    [("rollback", Stepped, 31), ("rollback", Notice, SPIKE), ("rollback", Saved, 35), ("skip", Notice, SPIKE)],
)
def test_a_run_that_was_cut_decides_as_one_that_was_not(
    text: Path, tmp_path: Path, action: str, kind: type[Event], step: int
) -> None:
    recipe = recipe_of(text, action)
    train(recipe, tmp_path / "straight", on_event=ignore)

    def tell(event: Event) -> None:
        # A notice is told when the decision is stored, and before it takes effect.
        here = "a spike" in event.text if isinstance(event, Notice) else getattr(event, "step", 0) == step
        if isinstance(event, kind) and here:
            raise Crash

    with pytest.raises(Crash):
        train(recipe, tmp_path / "cut", on_event=tell)
    stored: Any = tmp_path / "cut" / spikes.DECISIONS
    assert stored.exists() == (step >= SPIKE)
    train(recipe, tmp_path / "cut", on_event=ignore)
    assert differences(tmp_path / "straight", tmp_path / "cut") == []
    assert stored.read_bytes() == (tmp_path / "straight" / spikes.DECISIONS).read_bytes()


def test_a_stored_decision_is_followed(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    stored = [{"step": 5, "loss": 9.0, "limit": 8.0, "action": "skip", "to": 4}]
    (folder / spikes.DECISIONS).write_text(json.dumps(stored))
    train(recipe_of(text, "skip"), folder, on_event=ignore)
    train(recipe_of(text, "skip"), tmp_path / "other", on_event=ignore)
    one, other = losses(folder), losses(tmp_path / "other")
    assert [one[step] == other[step] for step in (5, 6)] == [True, False]


def test_anchors_of_later_steps_are_removed(text: Path, tmp_path: Path) -> None:
    train(recipe_of(text, "rollback"), tmp_path / "run", on_event=ignore)
    store = CheckpointStore(tmp_path / "run" / "resume" / spikes.ANCHORS)
    assert [path.name for path in store.paths()] == ["step-00000040", "step-00000030"]
