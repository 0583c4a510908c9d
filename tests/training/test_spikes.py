"""A spike whose update is skipped or rolled back, in a run that is left alone and in one that is cut."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(autouse=True, scope="module")
def one_bad_batch() -> Iterator[None]:
    """Let one batch ask for a token that the text has nowhere, and anchors be ten steps apart."""
    real = TextDataset.batch

    def batch(self: TextDataset, step: int) -> Batch:
        good = real(self, step)
        bad = step // 2 == SPIKE - 1  # two batches an update
        return replace(good, targets=torch.full_like(good.targets, 0)) if bad else good

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextDataset, "batch", batch)
        patch.setattr(spikes, "DISTANCE", 10)
        yield


def recipe_of(text: Path, action: str) -> Recipe:
    training = {"optimizer": "adamw(lr=0.003)", "schedule": "constant", "sample_every": 1000, "spikes": action}
    return small_recipe(text, STEPS, **training)


class Straight(NamedTuple):
    """A run that nobody disturbed, and what it told."""

    folder: Path
    events: list[Event]


@pytest.fixture(scope="module")
def straight(text: Path, one_bad_batch: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Straight]:
    """The run of an action, the same for all tests."""

    @cache
    def trained(action: str) -> Straight:
        found = Straight(tmp_path_factory.mktemp(action) / "run", [])
        train(recipe_of(text, action), found.folder, on_event=found.events.append)
        return found

    return trained


def losses(folder: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in rows_of(folder) if "loss" in row}


def test_the_limit_is_the_median_plus_eight_robust_deviations() -> None:
    values = [1.0, 1.2, 1.4, 1.6, 1.8] * 10
    assert spike_limit([x - 1.4 for x in values]) == pytest.approx(8 * 0.4 / 1.2816)  # the upper decile is farther
    assert spike_limit(values) == pytest.approx(1.4 * (1.4 / 1.2) ** (8 * 1.4826))  # in logarithms, which are skewed
    assert spike_limit([x + 50 for x in values]) == pytest.approx(51.4 * 1.1)
    assert spike_limit([2.0] * 50) == pytest.approx(2.2)
    assert spike_limit([9.0] * 30 + [1.0] * 50) == pytest.approx(1.1)  # the last fifty only
    assert spike_limit([1.0] * 19) == float("inf")


def test_losses_that_vary_as_usual_are_no_spikes() -> None:
    """Batches that are changed at random, with a tail to the right, as those of sounds; nine exceed 8 times the MAD."""
    draw = random.Random(0)
    rows = [0.8 * math.exp(draw.gauss(0, 0.05) + draw.expovariate(1 / 0.15)) for _ in range(900)]
    assert max(rows) > 2.2
    assert find_spikes(range(900), rows) == []
    assert [step for step, _, _ in find_spikes(range(900), [*rows[:600], 9.0, *rows[601:]])] == [600]


def test_a_rise_that_stays_is_no_spike() -> None:
    level = [1.0] * 30
    assert find_spikes(range(40), [*level, 3.0, 3.0, *[1.0] * 8]) == [(30, 3.0, 1.1), (31, 3.0, 1.1)]
    assert find_spikes(range(60), [*level, *[3.0] * 30]) == []
    detector = SpikeDetector(level)
    assert [detector.read(3.0) for _ in range(LONGEST + 1)] == [True] * LONGEST + [False]


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_a_spike_has_no_effect_on_the_weights(straight: Callable[[str], Straight], action: str) -> None:
    folder, events = straight(action)
    decision = json.loads((folder / spikes.DECISIONS).read_text())
    assert [(entry["step"], entry["action"]) for entry in decision] == [(SPIKE, action)]
    to = 30 if action == "rollback" else SPIKE - 1
    assert decision[0]["to"] == to
    sentences = [event.text for event in events if isinstance(event, Notice) and "a spike" in event.text]
    assert len(sentences) == 1
    assert f"step {SPIKE}: the loss is" in sentences[0]
    assert losses(folder)[SPIKE] > decision[0]["limit"]


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


def test_without_the_setting_the_update_is_made(straight: Callable[[str], Straight]) -> None:
    assert not (straight("report").folder / spikes.DECISIONS).exists()
    one, other = (losses(straight(action).folder) for action in ("report", "skip"))
    assert [one[step] == other[step] for step in (SPIKE, SPIKE + 1)] == [True, False]


@pytest.mark.parametrize(
    ("action", "kind", "step"),
    [("rollback", Stepped, 31), ("rollback", Notice, SPIKE), ("rollback", Saved, 35), ("skip", Notice, SPIKE)],
)
def test_a_run_that_was_cut_decides_as_one_that_was_not(
    text: Path, straight: Callable[[str], Straight], tmp_path: Path, action: str, kind: type[Event], step: int
) -> None:
    recipe, folder = recipe_of(text, action), straight(action).folder

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
    assert differences(folder, tmp_path / "cut") == []
    assert stored.read_bytes() == (folder / spikes.DECISIONS).read_bytes()


def test_a_stored_decision_is_followed(text: Path, straight: Callable[[str], Straight], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    stored = [{"step": 5, "loss": 9.0, "limit": 8.0, "action": "skip", "to": 4}]
    (folder / spikes.DECISIONS).write_text(json.dumps(stored))
    train(recipe_of(text, "skip"), folder, on_event=ignore)
    one, other = losses(folder), losses(straight("skip").folder)
    assert [one[step] == other[step] for step in (5, 6)] == [True, False]


def test_anchors_of_later_steps_are_removed(straight: Callable[[str], Straight]) -> None:
    store = CheckpointStore(straight("rollback").folder / "resume" / spikes.ANCHORS)
    assert [path.name for path in store.paths()] == ["step-00000040", "step-00000030"]
