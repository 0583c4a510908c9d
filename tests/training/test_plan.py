"""A budget of minutes: how many steps are planned, by the clock of a test; the plan is kept whenever a run is cut."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.training.kill_storm import STEPS, differences, ignore, small_recipe
from tests.training.test_resume import Crash

from qkv.runs.metrics import rows_of
from qkv.spec.errors import SpecError
from qkv.spec.recipe import Recipe
from qkv.spec.training import Constant, Cosine, InverseSquareRoot, Training
from qkv.system.errors import UserError
from qkv.training import clock
from qkv.training.loop import Trainer, train
from qkv.training.optim.schedules import shortened
from qkv.training.plan import FILE, Costs, Plan, PlanStage, expected, first_plan, second_plan
from qkv.training.watch.events import Event, Planned, Started, Stepped, Validated


class Ticks:
    """A clock moved only by model updates: ``rehearsed`` seconds each before the start, ``real`` seconds afterwards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rehearsed: float, real: float):
        self.now, self.update, self.real = 0.0, rehearsed, real
        monkeypatch.setattr(clock, "seconds", lambda: self.now)
        plain = Trainer.descend

        def descend(trainer: Trainer, step: int, *accepts: Any) -> Any:
            self.now += self.update
            return plain(trainer, step, *accepts)

        monkeypatch.setattr(Trainer, "descend", descend)

    def listen(self, then: Callable[[Event], object] = ignore) -> Callable[[Event], None]:
        """What ``train`` tells: from the start on, updates take the real time."""

        def tell(event: Event) -> None:
            if isinstance(event, Started):
                self.update = self.real
            then(event)

        return tell


def budgeted(text: Path, minutes: float, steps: int = 400) -> Recipe:
    training = {
        "validation": {"every": 100, "batches": 1},
        "checkpoints": {"every": 130},
        "sample_every": 1000,
        "accumulate": 1,
    }
    recipe = small_recipe(text, steps, minutes=minutes, **training)
    return recipe.changed(model={"width": 8, "num_layers": 1, "context_length": 8})


def run(text: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, rehearsed: float, real: float) -> list[Planned]:
    """What is planned for half a minute."""
    told: list[Planned] = []
    with monkeypatch.context() as patched:
        ticks = Ticks(patched, rehearsed, real)
        train(
            budgeted(text, 0.5),
            folder,
            on_event=ticks.listen(lambda e: told.append(e) if isinstance(e, Planned) else None),
        )
    return told


def steps_done(folder: Path) -> int:
    return max(row["step"] for row in rows_of(folder) if "loss" in row)


def test_steps_that_fit_are_all_made_and_come_to_what_no_budget_gives(
    text: Path, straight: Path, tmp_path: Path
) -> None:
    train(small_recipe(text, STEPS, minutes=1.0), tmp_path / "run", on_event=ignore)
    assert [d for d in differences(straight, tmp_path / "run") if d != "metrics.jsonl"] == []
    losses = [[row["loss"] for row in rows_of(folder) if "loss" in row] for folder in (straight, tmp_path / "run")]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(("real", "wanted"), [(1.0, 24), (1.1, 22), (0.5, 49)], ids=["as thought", "slower", "faster"])
def test_the_plan_is_checked_once_and_then_kept(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real: float, wanted: int
) -> None:
    # Four updates of a second are rehearsed, the first untimed; of the half minute 28.5 seconds are planned for.
    first, second = run(text, tmp_path / "run", monkeypatch, 1.0, real)
    assert (first.step, first.steps, first.most, first.seconds) == (0, 24, 400, 28.0)
    assert (second.step, second.steps) == (10, wanted)
    assert steps_done(tmp_path / "run") == wanted
    rows = rows_of(tmp_path / "run")
    assert [(row["step"], row["planned_steps"]) for row in rows if "planned_steps" in row] == [(0, 24), (10, wanted)]
    assert [row["taken_seconds"] for row in rows if "taken_seconds" in row] == [pytest.approx(4 + wanted * real)]
    assert abs(second.seconds - (4 + wanted * real)) < 1e-9 <= 30 - second.seconds
    page = (tmp_path / "run" / "report.html").read_text()
    assert "expected before the start" in page
    assert "expected after 10 steps" in page
    assert "taken in all" in page


def test_never_more_than_the_recipes_steps(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        ticks = Ticks(patched, 1.0, 1e-3)
        train(budgeted(text, 0.5, steps=60), tmp_path / "run", on_event=ticks.listen())
    assert steps_done(tmp_path / "run") == 60


def test_what_does_not_fit_at_all_is_said(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from qkv.training.watch.show import Show

    with monkeypatch.context() as patched, Show() as show:
        ticks = Ticks(patched, 30.0, 30.0)
        train(budgeted(text, 0.5), tmp_path / "run", on_event=ticks.listen(show))
    assert steps_done(tmp_path / "run") == 20
    assert (
        "about 12 min 00 s for 20 steps of at most 400; even this minimum exceeds training.minutes=0.5"
        in capsys.readouterr().err
    )


@pytest.fixture(scope="module")
def uncut(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was planned for 24 steps and makes 30."""
    folder = tmp_path_factory.mktemp("plans") / "uncut"
    with pytest.MonkeyPatch.context() as patched:
        run(text, folder, patched, 1.0, 0.8)
    return folder


@pytest.mark.parametrize("cut", [(Started, 0), (Stepped, 3), (Planned, 10), (Stepped, 11), (Stepped, 25)])
def test_a_run_that_was_cut_keeps_its_plan_on_a_machine_of_another_speed(
    text: Path, uncut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: tuple[type[Event], int]
) -> None:
    def crash(event: Event) -> None:
        if (type(event), getattr(event, "step", None)) == cut:
            raise Crash

    recipe = budgeted(text, 0.5)
    with monkeypatch.context() as patched, pytest.raises(Crash):
        train(recipe, tmp_path / "cut", on_event=Ticks(patched, 1.0, 0.8).listen(crash))
    with monkeypatch.context() as patched:
        # Before the check the plan is still open: it is checked against the updates that are then made.
        speed = 0.8 if cut[0] is Started or cut[1] < 10 else 0.1
        train(recipe, tmp_path / "cut", on_event=Ticks(patched, 99.0, speed).listen())
    assert differences(uncut, tmp_path / "cut") == []


def test_the_plan_of_a_checkpoint_outlives_its_file(
    text: Path, uncut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 25:
            raise Crash

    with monkeypatch.context() as patched, pytest.raises(Crash):
        train(budgeted(text, 0.5), tmp_path / "cut", on_event=Ticks(patched, 1.0, 0.8).listen(crash))
    (tmp_path / "cut" / "resume" / FILE).write_text("{")
    train(budgeted(text, 0.5), tmp_path / "cut", on_event=ignore)
    assert differences(uncut, tmp_path / "cut") == []


def test_the_plan_is_on_the_disk_before_it_takes_effect(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, Any]] = []

    def look(event: Event) -> None:
        if isinstance(event, (Started, Stepped)) and event.step in (0, 1, 9, 11):
            plan = json.loads((tmp_path / "run" / "resume" / FILE).read_text())
            found.append((plan["first"]["steps"], plan["second"] and plan["second"]["steps"]))

    with monkeypatch.context() as patched:
        train(budgeted(text, 0.5), tmp_path / "run", on_event=Ticks(patched, 1.0, 0.8).listen(look))
    assert found == [(24, None), (24, None), (24, None), (24, 30)]


def test_another_budget_or_more_steps_over_the_same_folder(text: Path, uncut: Path, tmp_path: Path) -> None:
    shutil.copytree(uncut, tmp_path / "run")
    with pytest.raises(UserError, match=r"training\.minutes is 0\.5 there and 2\.0 here"):
        train(budgeted(text, 2.0), tmp_path / "run", on_event=ignore)
    with pytest.raises(
        UserError, match=r"training\.steps is 500, but the run in .* was planned with at most 400 steps"
    ):
        train(budgeted(text, 0.5, steps=500), tmp_path / "run", on_event=ignore)


@pytest.mark.parametrize("minutes", [0, -1, "five", float("nan"), float("inf")])
def test_a_budget_is_a_positive_number(minutes: Any) -> None:
    with pytest.raises(SpecError, match="minutes"):
        Training.parse({"minutes": minutes})


def test_validations_are_measured_as_often_as_planned(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    with monkeypatch.context() as patched:
        ticks = Ticks(patched, 1.0, 1.0)
        listen = ticks.listen(lambda event: looked.append(event.step) if isinstance(event, Validated) else None)
        train(budgeted(text, 0.5), tmp_path / "run", on_event=listen)
    # Every 100 of 400 steps becomes every 6 of 24.
    assert looked == [6, 12, 18, 24]


TRAINING = Training.parse(
    {"steps": 10_000, "minutes": 5.0, "validation": {"every": 1000}, "checkpoints": {"every": 1000}}
)


def test_evaluation_validations_and_files_are_part_of_the_plan() -> None:
    costs = Costs(step=0.1, validation=2.0, checkpoint=0.5, best=0.25, evaluation=30.0)
    plan = first_plan(TRAINING, costs, spent=15.0)
    # 0.95 · 300 s, less preparation, evaluation, ten validations and eleven checkpoints, four of them by the clock.
    assert plan.first.steps == pytest.approx((285 - 15 - 30 - 10 * 2.25 - 14 * 0.5) / 0.1, rel=0.02)
    assert plan.first.seconds <= 285
    assert (
        expected(TRAINING, costs, PlanStage(plan.first.steps + 11, plan.first.validate, plan.first.save), 0, 15.0) > 285
    )
    assert plan.check == -(-plan.first.steps // 50)


def test_validations_never_take_most_of_the_time() -> None:
    plan = first_plan(TRAINING, Costs(step=0.1, validation=25.0), spent=0.0)
    assert plan.first.steps * 0.1 > 0.7 * 285
    assert plan.first.steps / plan.first.validate < 4


def test_a_second_plan_counts_from_where_it_is_made() -> None:
    plan = first_plan(TRAINING, Costs(step=0.1), spent=0.0)
    slower = second_plan(plan, TRAINING, Costs(step=0.2), spent=plan.check * 0.2).after(plan.check)
    assert slower.steps == pytest.approx(285 / 0.2, rel=0.02)
    assert second_plan(plan, TRAINING, Costs(step=1e-6), spent=1.0).after(plan.check).steps == 10_000
    assert second_plan(plan, TRAINING, Costs(step=100.0), spent=9e3).after(plan.check).steps == plan.check + 1


def test_a_plan_comes_back_from_its_file() -> None:
    plan = second_plan(first_plan(TRAINING, Costs(step=0.1), 0.0), TRAINING, Costs(0.2), 9.0)
    assert Plan.parse(json.loads(json.dumps(plan.to_dict()))) == plan


def test_the_warm_up_follows_the_steps() -> None:
    assert shortened(Cosine(warmup=100), 1000, 1000) == Cosine(warmup=100)
    assert shortened(Cosine(warmup=100), 500, 1000) == Cosine(warmup=50)
    assert shortened(Constant(warmup=20), 300, 5000) == Constant(warmup=20)
    assert shortened(InverseSquareRoot(warmup=4000), 500, 10_000) == InverseSquareRoot(warmup=4000)


def test_an_evaluation_is_rehearsed_on_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is moved by the rows that the evaluation answers, and the plan knows how long all of them take."""
    from qkv.tasks.labels.classification import ClassificationTask

    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "good film,1\nbad plot,0\n" * 2000)
    model = {
        "width": 8,
        "context_length": 8,
        "blocks": [{"branches": ["attention(2, mask=full)"]}],
        "head": "classification",
    }
    training = {"steps": 12, "minutes": 60.0, "batch_size": 4, "validation": {"every": 12, "batches": 1}}
    recipe = Recipe.parse(
        {"data": {"source": str(table)}, "model": model, "task": "classification", "training": training}
    )
    ticks, answered, plain = Ticks(monkeypatch, 1e-3, 1e-3), [], ClassificationTask.answered

    def count(self: Any, model: Any, dataset: Any, split: str, of: Any, most: int | None = None) -> Any:
        if most is None:  # not a sample
            answered.append(len(dataset.records[split]))
            ticks.now += 5 + answered[-1]
        return plain(self, model, dataset, split, of, *([] if most is None else [most]))

    monkeypatch.setattr(ClassificationTask, "answered", count)
    told: list[Planned] = []
    train(recipe, tmp_path / "run", on_event=ticks.listen(lambda e: told.append(e) if isinstance(e, Planned) else None))
    assert max(answered[:-1]) <= 256 < answered[-1] == 400
    assert told[0].after == pytest.approx(405, rel=0.02)
