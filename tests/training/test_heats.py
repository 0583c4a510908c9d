"""Heats: short runs of several models, of which the best is trained to the end."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.report.checks import read_page
from tests.training.kill_storm import ignore
from tests.training.test_wide import recipe_of

from qkv.choosing.automatic_task import automatic_task
from qkv.runs.metrics import rows_of
from qkv.runs.run import Run
from qkv.spec.errors import SpecError
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.training.interrupt import Interrupted
from qkv.training.loop import train
from qkv.training.race import heats as heats_module
from qkv.training.race.heats import FOLDER, read_heats
from qkv.training.watch.events import Ended, Event, Notice, Started, Stepped
from qkv.training.watch.progress import RunProgress

BLIND = {"training.optimizer.lr": 1e-9}
"""Changes of a model that learns nothing."""


def racing(folder: Path, **candidates: dict[str, Any]) -> Recipe:
    return recipe_of(folder).changed(
        candidates=candidates or {"blind": BLIND, "quick": {"training.optimizer.lr": 0.02}}
    )


def heard(events: list[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def notices(events: list[Event]) -> str:
    return "\n".join(event.text for event in heard(events, Notice))


def test_the_model_of_lowest_validation_loss_is_trained_to_the_end(tmp_path: Path) -> None:
    recipe, folder, events = racing(tmp_path), tmp_path / "run", list[Event]()
    run = train(recipe, folder, on_event=events.append)
    heats = read_heats(folder)
    losses = {
        name: min(row["val_loss"] for row in rows_of(folder / FOLDER / name) if "val_loss" in row) for name in heats
    }
    assert {name: heat.loss for name, heat in heats.items()} == losses
    assert losses["quick"] < losses["blind"]
    assert run.recipe.training.optimizer.lr == 0.02
    assert not run.recipe.candidates
    assert "quick won short heats against blind" in run.recipe.description
    assert run.evaluation is not None
    table = next(s for s in run.evaluation["splits"]["validation"]["sections"] if s["kind"] == "heats")
    assert [row[0] for row in table["rows"]] == ["quick", "blind"]
    assert "quick won short heats" in read_page((folder / "report.html").read_text()).text
    assert not list((folder / FOLDER).glob("*/resume"))  # checkpoints of heats are removed
    assert not list((folder / FOLDER).glob("*/evaluation.json"))
    again: list[Event] = []
    train(recipe, folder, on_event=again.append)  # the same call finds the run finished
    assert "is finished" in notices(again)
    assert not heard(again, Started)


def weights(run: Run) -> list[torch.Tensor]:
    return [*run.model.parameters(), *run.model.buffers()]


def stopping(events: list[Event], when: Callable[[Event], bool]) -> Callable[[Event], None]:
    """Handler that stops the process's training by Ctrl-C at the first event for which ``when`` holds."""

    def handle(event: Event) -> None:
        events.append(event)
        if when(event):
            signal.raise_signal(signal.SIGINT)

    return handle


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Run]:
    """A race that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    recipe = racing(folder)
    return recipe, train(recipe, folder / "run", on_event=ignore)


@pytest.mark.parametrize("starts", [1, 2, 3])
def test_a_race_stopped_at_any_time_ends_as_one_that_was_not(
    whole: tuple[Recipe, Run], tmp_path: Path, starts: int
) -> None:
    recipe, straight = whole
    events: list[Event] = []

    def within(event: Event) -> bool:  # step 2 of the first heat, of the second, or of the run
        return isinstance(event, Stepped) and event.step == 2 and len(heard(events, Started)) == starts

    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "run", on_event=stopping(events, within))
    after: list[Event] = []
    run = train(recipe, tmp_path / "run", on_event=after.append)
    assert notices(after).count("heat of ") == max(0, 3 - starts)
    for one, other in zip(weights(straight), weights(run), strict=True):
        assert torch.equal(one, other)
    assert run.recipe == straight.recipe


def test_a_candidate_whose_loss_is_not_finite_loses(tmp_path: Path) -> None:
    events: list[Event] = []
    recipe = racing(tmp_path, wild={"training.optimizer.lr": 1e30, "training.clip_norm": None}, calm={})
    run = train(recipe, tmp_path / "run", on_event=events.append)
    assert "heat of wild failed: step" in notices(events)
    assert "calm won" in run.recipe.description
    assert read_heats(tmp_path / "run")["wild"].loss is None


def test_all_candidates_failing_is_one_sentence(tmp_path: Path) -> None:
    recipe = racing(tmp_path, wild={"training.optimizer.lr": 1e30, "training.clip_norm": None})
    with pytest.raises(UserError, match="all heats failed: wild"):
        train(recipe, tmp_path / "run", on_event=ignore)


def test_data_that_no_candidate_can_read_is_told_once(tmp_path: Path) -> None:
    recipe = racing(tmp_path)
    (tmp_path / "table.jsonl").unlink()
    events: list[Event] = []
    with pytest.raises(UserError, match=r"table\.jsonl"):
        train(recipe, tmp_path / "run", on_event=events.append)
    assert not notices(events)


def test_wrong_changes_are_refused_before_any_heat(tmp_path: Path) -> None:
    recipe = racing(tmp_path, right={}, wrong={"model.widht": 8})
    with pytest.raises(SpecError, match="widht"):
        train(recipe, tmp_path / "run", on_event=ignore)
    assert not (tmp_path / "run" / FOLDER).exists()
    for candidates, message in (({"../a": {}}, "cannot name a folder"), ({"a": {"candidates": {}}}, "not the list")):
        with pytest.raises(SpecError, match=message):
            Recipe.parse({**recipe_of(tmp_path).model_dump(exclude_unset=True), "candidates": candidates})


def test_damaged_results_are_told(tmp_path: Path) -> None:
    recipe = racing(tmp_path)
    place = tmp_path / "run" / FOLDER / "results.json"
    place.parent.mkdir(parents=True)
    for content in ("{", "[1]", '{"blind": {"los": 1}}'):
        place.write_text(content)
        with pytest.raises(UserError, match=r"results\.json is damaged; remove it"):
            train(recipe, tmp_path / "run", on_event=ignore)


def test_a_run_of_other_candidates_is_not_continued(tmp_path: Path) -> None:
    recipe = racing(tmp_path)
    train(recipe.changed(candidates={}), tmp_path / "run", on_event=ignore)
    with pytest.raises(UserError, match="was chosen from other candidates"):
        train(recipe, tmp_path / "run", on_event=ignore)


def test_the_budget_covers_the_heats(tmp_path: Path) -> None:
    recipe = racing(tmp_path)
    recipe = recipe.changed(training=recipe.training.changed(minutes=0.05, steps=100_000))
    run = train(recipe, tmp_path / "run", on_event=ignore)
    heats = read_heats(tmp_path / "run")
    plans = [row["planned_steps"] for row in run.metrics if "planned_steps" in row]
    preparation = json.loads((tmp_path / "run" / "resume" / "plan.json").read_text())["spent"]
    assert preparation >= sum(heat.seconds for heat in heats.values())
    assert plans
    assert all(math.isfinite(heat.seconds) and heat.seconds > 0 for heat in heats.values())


def test_what_the_user_says_of_the_model_ends_the_race(tmp_path: Path) -> None:
    data = {"source": str(recipe_of(tmp_path).data.source)}
    assert len(automatic_task("classification", data).candidates) > 1
    for change in ("model.width=32", "model.blocks.0.dropout=0", "data.tokenizer=bpe", "training.optimizer.lr=1e-3"):
        assert not automatic_task("classification", data, [change]).candidates
    for change in ("training.seed=3", "training.minutes=1", "wide=null"):
        assert automatic_task("classification", data, [change]).candidates
    assert not automatic_task("classification", data, quick=True).candidates


def test_each_candidate_of_a_chosen_recipe_is_a_model(tmp_path: Path) -> None:
    data = {"source": str(recipe_of(tmp_path).data.source)}
    changes = ["training.steps=3", "training.minutes=null", "training.validation.every=3"]
    recipe = automatic_task("classification", data, changes)
    events: list[Event] = []
    train(recipe, tmp_path / "run", on_event=events.append)
    heats = read_heats(tmp_path / "run")
    assert heats.keys() == recipe.candidates.keys() == {"attention", "convolution", "encoder"}
    assert all(heat.loss is not None and heat.steps == 3 for heat in heats.values())
    assert len(heard(events, Ended)) == 4


def raced(tmp_path: Path, minutes: float, train_loss: float, loss: float, whole: bool = True) -> list[str]:
    """Names of the models of all heats, in order, where the largest has the least loss."""
    recipe = racing(tmp_path, plain={}, other={"model.num_layers": 1})
    recipe = recipe.changed(training=recipe.training.changed(minutes=minutes))
    known = {
        "plain": heats_module.Heat(loss, 80.0, 4, 6.0, train_loss, whole),
        "other": heats_module.Heat(2, 50, 4, 6.0),
    }
    while name := heats_module._larger(recipe, known):
        width = heats_module._winner(recipe, name).model.width
        known[name] = heats_module.Heat(loss - len(known) / 10, 81.0, 4, 6.0, train_loss, whole)
        assert width == 8 * 2 ** (len(known) - 2)
    return list(known)


def test_larger_models_are_tried_where_training_is_not_fitted_and_time_is_left(tmp_path: Path) -> None:
    assert raced(tmp_path, 10, 0.9, 1.0) == ["plain", "other", "plain_x2", "plain_x4"]
    assert raced(tmp_path, 10, 0.2, 1.0) == ["plain", "other"]  # fitted
    assert raced(tmp_path, 1, 0.9, 1.0) == ["plain", "other"]  # 24 seconds for all heats, and 30 would be needed
    assert raced(tmp_path, 10, 0.9, 1.0, whole=False) == ["plain", "other"]  # its time was short already


def test_a_larger_model_that_is_no_better_is_the_last(tmp_path: Path) -> None:
    recipe = racing(tmp_path, plain={}, other={})
    recipe = recipe.changed(training=recipe.training.changed(minutes=10))
    known = {name: heats_module.Heat(loss, 80.0, 4, 6.0, 0.9, True) for name, loss in (("plain", 1.0), ("other", 2.0))}
    assert heats_module._larger(recipe, known | {"plain_x2": heats_module.Heat(1.1, 80.0, 4, 6.0, 0.9, True)}) == ""


def test_a_run_goes_on_without_better_validations_only_where_its_training_loss_falls_and_is_high() -> None:
    now = RunProgress()
    now.saw(1.0)
    now.compare(1.0, best=True)
    assert not now.fitting
    now.train_loss = 0.9
    now.compare(1.0, best=False)
    assert now.fitting  # near the validation loss, and falling
    now.train_loss = 0.5
    now.compare(1.0, best=False)
    assert not now.fitting  # fitted
    now.train_loss = 0.99
    now.compare(1.0, best=False)
    assert not now.fitting  # no longer falling
