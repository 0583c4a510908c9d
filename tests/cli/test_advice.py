"""Advice after a run on a table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tasks.tables import recipe_for

from qkv.cli.shared.advice import advice, write_option
from qkv.runs.run import Run
from qkv.spec.models.start import CheckpointStart
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.preference_tasks import Preference


def run_of(recipe: Recipe, best: int, steps: int = 30, loss: float = 0.3) -> Run:
    rows: list[dict[str, Any]] = [{"step": step, "val_loss": 1.0, "loss": loss} for step in range(10, steps + 1, 10)]
    return Run(Path("runs/mine"), recipe, None, None, rows, best)  # type: ignore[arg-type]


def test_a_run_that_still_improved_needs_time() -> None:
    named = {"columns": {"text": "review", "label": "stars"}, "test": "other.csv"}
    recipe = recipe_for("classification", "my table.csv", named, training={"minutes": 2})
    assert advice(run_of(recipe, 30)) == (
        "the last validation was the best, so more time helps: "
        "qkv train classify --data 'my table.csv' --test other.csv --text review --label stars --minutes 6 "
        "--out runs/mine-longer"
    )


def test_a_run_by_steps_that_still_improved_needs_steps() -> None:
    recipe = recipe_for("classification", training={"steps": 30})
    assert advice(run_of(recipe, 30)) == (
        "the last validation was the best, so more steps help: "
        "qkv train runs/mine/spec.yaml training.steps=90 --out runs/mine-longer"
    )
    assert advice(run_of(recipe, 20)).startswith("validation stopped improving")


@pytest.mark.parametrize("task", ["regression", "token_classification"])
def test_a_run_that_stopped_improving_needs_rows_or_a_published_encoder(task: str) -> None:
    found = advice(run_of(recipe_for(task, training={"minutes": 2}), 20))
    verb = {"regression": "regress", "token_classification": "tag"}[task]
    assert found.startswith("validation stopped improving: more rows help, or a published encoder")
    assert found.endswith(f"qkv train {verb} --from NAME --data table.jsonl")


def test_a_run_that_did_not_fit_its_training_rows_needs_a_stronger_model() -> None:
    found = advice(run_of(recipe_for("classification", training={"minutes": 2}), 20, loss=0.95))
    assert found.startswith("the model does not even fit the training rows, so it is too weak")
    assert found.endswith("qkv train classify --data table.jsonl --minutes 6 --out runs/mine-longer")


@pytest.mark.parametrize(
    ("processor", "frontend"),
    [
        ({"kind": "images", "augment": ["crop"]}, "patches"),
        ({"kind": "log_mel", "changes": ["shift"]}, "mel_convolutions"),
    ],
)
def test_losses_of_rows_that_change_at_random_say_nothing_of_the_model(
    processor: dict[str, Any], frontend: str
) -> None:
    recipe = recipe_for("classification", training={"minutes": 2})
    data, model = recipe.data.changed(processor=processor), recipe.model.changed(frontend=frontend)
    found = advice(run_of(recipe.changed(data=data, model=model), 20, loss=0.95))
    assert found.startswith("validation stopped improving")


@pytest.mark.parametrize(
    ("adapt", "end"),
    [
        ("lora", "training all weights may: qkv train classify --from bert --data table.jsonl --adapt whole --out "),
        ("whole", "a larger model to start from would"),
    ],
)
def test_a_start_is_not_replaced_by_larger_models(adapt: str, end: str) -> None:
    recipe = recipe_for("classification", training={"minutes": 2, "adapt": adapt})
    found = advice(run_of(recipe.changed(start=CheckpointStart(source="bert")), 20, loss=0.95))
    assert found.startswith("the model does not even fit the training rows, so it is too weak")
    assert end in found
    assert "larger models are tried" not in found


def test_label_smoothing_alone_makes_no_model_too_weak() -> None:
    recipe = recipe_for("classification", training={"minutes": 2})
    plain = run_of(recipe.changed(task=recipe.task.changed(label_smoothing=0.5)), 20, loss=1.0)
    run = replace(plain, vocabulary=SimpleNamespace(labels=("a", "b", "c")))  # type: ignore[arg-type]
    assert advice(run).startswith("validation stopped improving")


def test_a_run_without_mistakes_needs_more_validation_rows(tmp_path: Path) -> None:
    run = replace(run_of(recipe_for("classification", training={"minutes": 2}), 30), folder=tmp_path)
    figures = {"accuracy": 100.0, "targets": 6}
    splits = {"validation": {"figures": figures, "sections": [], "notes": []}}
    (tmp_path / "evaluation.json").write_text(json.dumps({"step": 30, "splits": splits}))
    assert advice(run).startswith("all 6 validation rows are predicted right")


def test_a_fine_tuned_run_needs_rows() -> None:
    recipe = recipe_for("classification").changed(start="bert-base-uncased")
    assert advice(run_of(recipe, 20)) == "validation stopped improving: more rows help most"


def test_other_runs_get_none() -> None:
    assert advice(run_of(Recipe.parse({"data": {"source": "a.txt"}, "model": {}}), 20)) == ""
    assert advice(run_of(recipe_for("classification"), 0, steps=0)) == ""


def test_a_part_is_written_as_an_option_reads_it() -> None:
    spec = Preference.parse({"loss": {"kind": "kto", "beta": 0.2}})
    text = write_option(spec.to_dict()["loss"])
    assert Preference.parse({"loss": text}) == spec
