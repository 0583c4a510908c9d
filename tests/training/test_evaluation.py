"""The evaluation of a finished run: whole or not at all, and never lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.running import BYTE_PAIRS, PAIR, SEES_ALL, VECTORS, recipe_of
from tests.tasks.test_runs_of_examples import small_recipe
from tests.training.kill_storm import ignore

from qkv.runs import evaluation
from qkv.runs.evaluation import evaluate
from qkv.runs.storage.evaluation_file import EVALUATION, read_evaluation, write_evaluation
from qkv.runs.storage.load import load
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.labels.classification import ClassificationTask
from qkv.tasks.registry import build_task
from qkv.tasks.task import Evaluation
from qkv.training.interrupt import Interrupted
from qkv.training.loop import train
from qkv.training.watch.events import Ended, Evaluated, Event, Notice


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "good film,1\nbad plot,0\n" * 20)
    model = {
        "width": 16,
        "context_length": 8,
        "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward"]}],
        "head": "classification",
    }
    training = {
        "steps": 6,
        "batch_size": 4,
        "optimizer": "adamw(lr=0.01)",
        "schedule": "constant",
        "validation": {"every": 3},
    }
    return Recipe.parse(
        {
            "data": {"source": str(table), "test": str(table)},
            "model": model,
            "task": "classification",
            "training": training,
        }
    )


def figures(folder: Path) -> dict[str, dict[str, float]]:
    found = json.loads((folder / EVALUATION).read_text())["splits"]
    return {
        split: {name: value for name, value in evaluation["figures"].items() if name != "seconds"}
        for split, evaluation in found.items()
    }


def test_a_finished_run_is_examined_on_all_that_was_held_out(recipe: Recipe, tmp_path: Path) -> None:
    events: list[Event] = []
    run = train(recipe, tmp_path / "run", on_event=events.append)
    assert [event.split for event in events if isinstance(event, Evaluated)] == ["validation", "test"]
    assert run.evaluation is not None
    assert run.evaluation["step"] == run.step
    assert {split: found["targets"] for split, found in figures(run.folder).items()} == {"validation": 4, "test": 40}
    measured = evaluate(run, "test").figures
    assert figures(run.folder)["test"] == pytest.approx(
        {name: value for name, value in measured.items() if name != "seconds"}
    )
    assert run.evaluation["splits"]["test"]["sections"][0]["kind"] == "confusion"


def test_a_part_of_a_split_is_no_evaluation(recipe: Recipe, tmp_path: Path) -> None:
    run = train(recipe, tmp_path / "run", on_event=ignore)
    assert evaluate(run, "test", batches=1).figures["targets"] == 4
    assert evaluate(run, "test", batches=1).sections == []
    assert evaluate(run, "test").sections != []


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def test_an_evaluation_that_was_killed_is_taken_at_the_next_start(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(recipe, tmp_path / "whole", on_event=ignore)
    plain = ClassificationTask.evaluate

    def killed(self: Any, model: Any, dataset: Any, split: str, *rest: Any) -> Evaluation:
        if split == "test":
            raise Killed
        return plain(self, model, dataset, split, *rest)

    monkeypatch.setattr(ClassificationTask, "evaluate", killed)
    with pytest.raises(Killed):
        train(recipe, tmp_path / "run", on_event=ignore)
    assert not (tmp_path / "run" / EVALUATION).exists()
    assert load(tmp_path / "run").evaluation is None
    monkeypatch.setattr(ClassificationTask, "evaluate", plain)
    train(recipe, tmp_path / "run", on_event=ignore)
    assert figures(tmp_path / "run") == figures(whole.folder)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()


def test_a_signal_leaves_the_evaluation_for_the_next_start(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ClassificationTask.evaluate

    def signalled(*args: Any) -> Evaluation:
        signal.raise_signal(signal.SIGTERM)
        return plain(*args)

    monkeypatch.setattr(ClassificationTask, "evaluate", signalled)
    events: list[Event] = []
    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "run", on_event=events.append)
    ended = [(event.status, event.message) for event in events if isinstance(event, Ended)]
    assert ended == [("stopped", "stopped by SIGTERM during the final evaluation; the same command resumes it")]
    assert not (tmp_path / "run" / EVALUATION).exists()
    monkeypatch.setattr(ClassificationTask, "evaluate", plain)
    assert train(recipe, tmp_path / "run", on_event=ignore).evaluation is not None


def test_a_figure_that_cannot_be_computed_does_not_cost_the_run(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: Any) -> Evaluation:
        raise UserError("the library is not installed")

    plain = ClassificationTask.evaluate
    monkeypatch.setattr(ClassificationTask, "evaluate", lacking)
    events: list[Event] = []
    run = train(recipe, tmp_path / "run", on_event=events.append)
    assert run.evaluation is None
    assert "the final evaluation failed: the library is not installed" in " ".join(
        e.text for e in events if isinstance(e, Notice)
    )
    assert [event.status for event in events if isinstance(event, Ended)] == ["finished"]
    monkeypatch.setattr(ClassificationTask, "evaluate", plain)
    assert train(recipe, tmp_path / "run", on_event=ignore).evaluation is not None


def test_a_longer_run_is_examined_anew(recipe: Recipe, tmp_path: Path) -> None:
    first = train(recipe, tmp_path / "run", on_event=ignore)
    longer = train(recipe.changed(training=recipe.training.changed(steps=12)), tmp_path / "run", on_event=ignore)
    assert longer.step > first.step  # or there was nothing to evaluate
    assert longer.evaluation is not None
    assert longer.evaluation["step"] == longer.step


def test_an_evaluation_of_other_weights_or_half_of_one_is_none(tmp_path: Path) -> None:
    write_evaluation(tmp_path, 5, {"validation": Evaluation({"loss": float("nan"), "accuracy": 50.0})})
    found = read_evaluation(tmp_path, 5)
    assert found is not None
    assert found["splits"]["validation"]["figures"] == {"loss": None, "accuracy": 50.0}
    assert read_evaluation(tmp_path, 6) is None
    (tmp_path / EVALUATION).write_text((tmp_path / EVALUATION).read_text()[:30])
    assert read_evaluation(tmp_path, 5) is None
    (tmp_path / EVALUATION).write_text("[]")
    assert read_evaluation(tmp_path, 5) is None


def test_a_language_model_has_no_evaluation(straight: Path) -> None:
    assert not (straight / EVALUATION).exists()
    assert load(straight).evaluation is None


def recipe_of_task(task: str, folder: Path) -> Recipe:
    """Two steps of the task on a few rows."""
    few = {"steps": 2, "schedule": "constant"}
    if task in ("masked_tokens", "span_corruption", "skip_gram", "sorting", "recall", "copying"):
        model = {"masked_tokens": SEES_ALL, "span_corruption": PAIR, "skip_gram": VECTORS}.get(task, SEES_ALL)
        if task == "sorting":
            return recipe_of("sorting(length=3, high=9)", {**SEES_ALL, "head": "tokens"})
        if task == "copying":
            return recipe_of("copying(sizes=[2, 3], symbols=4)", {"head": "tokens"})
        if task == "recall":
            drawn = {"kind": "recall", "distances": [1, 2], "symbols": 3, "fillers": 3}
            return recipe_of(drawn, {**SEES_ALL, "head": "classification(pooling=last)"})
        return recipe_of(task, model, folder, "word_list(60, min_frequency=1)" if task == "skip_gram" else BYTE_PAIRS)
    return small_recipe(task, folder, **few)


@pytest.mark.parametrize(
    "task",
    [
        "classification",
        "regression",
        "token_classification",
        "question_answering",
        "translation",
        "summarization",
        "masked_tokens",
        "span_corruption",
        "skip_gram",
        "sorting",
        "recall",
        "copying",
    ],
)
def test_a_signal_ends_the_evaluation_of_every_task_at_once(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of_task(task, tmp_path)
    kind = type(build_task(recipe.task))
    real_figures, real_measure = kind.figures, evaluation.measure
    measured: list[int] = []
    went_on: list[int] = []

    def measure(*args: Any) -> Any:
        found = real_measure(*args)
        measured.append(1)
        return found

    def figures(*args: Any) -> Any:
        if measured:
            os.kill(os.getpid(), signal.SIGTERM)
            went_on.append(1)
        return real_figures(*args)

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "measure", measure)
        patch.setattr(kind, "figures", figures)
        with pytest.raises(Interrupted, match="during the final evaluation"):
            train(recipe, tmp_path / "run", on_event=ignore)
    assert not went_on
    assert not (tmp_path / "run" / EVALUATION).exists()
    train(recipe, tmp_path / "run", on_event=ignore)
    assert (tmp_path / "run" / EVALUATION).exists()


def test_the_evaluation_of_thousands_of_classes_is_small(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "".join(f"word{i % 50} a{i},class{i % 2000}\n" for i in range(2000)))
    held_out = tmp_path / "held_out.csv"
    held_out.write_text("\n".join(table.read_text().splitlines()[:201]))
    model = {"width": 8, "context_length": 8, "blocks": [{"branches": ["feed_forward"]}], "head": "classification"}
    columns = {"text": "text", "label": "label"}
    data = {"source": str(table), "tokenizer": "words(60)", "validation": str(held_out), "columns": columns}
    training = {"steps": 1, "batch_size": 64, "schedule": "constant"}
    recipe = Recipe.parse({"data": data, "model": model, "task": "classification", "training": training})
    run = train(recipe, tmp_path / "run", on_event=ignore)
    assert run.evaluation
    (section, *_) = run.evaluation["splits"]["validation"]["sections"]
    assert len(section["counts"]) == 41
    assert sum(map(sum, section["counts"])) == 200
    assert "2,000 classes" in section["note"]
    assert any(
        "the n-gram baseline is left out: 2,000 classes" in note
        for note in run.evaluation["splits"]["validation"]["notes"]
    )
    assert (tmp_path / "run" / EVALUATION).stat().st_size < 200_000
    assert (tmp_path / "run" / "report.html").stat().st_size < 2e6
