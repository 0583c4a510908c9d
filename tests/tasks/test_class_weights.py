"""Rare labels in the loss: scikit-learn's weights, each target's loss times its weight, and a word on low recall."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from tests.tasks.tables import dataset_of, model_of, recipe_for, rows_of
from tests.tasks.test_runs_of_examples import small_recipe
from tests.training.kill_storm import ignore

from qkv.data.batching.batch import IGNORED
from qkv.spec.errors import SpecError
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.labels.class_weights import balanced, rare_labels_note
from qkv.training.loop import train
from qkv.training.watch.results import _other

ROWS = rows_of("classification", 30)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    labels = ["a"] * 7 + ["b"] * 2 + ["c"] * 11
    wanted = compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=np.array(labels))
    assert list(balanced(Counter(labels)).values()) == pytest.approx(wanted)


@pytest.mark.parametrize("task", ["classification", "token_classification"])
@pytest.mark.parametrize("given", ["balanced", "by label"])
def test_the_loss_is_a_weighted_sum_over_targets(task: str, given: str) -> None:
    rows = rows_of(task, 30)
    label = "animal" if task == "classification" else "B-place"
    weights = "balanced" if given == "balanced" else {label: 3.0}
    recipe = recipe_for(task).changed(task={"kind": task, "label_smoothing": 0.1, "class_weights": weights})
    made, dataset = dataset_of(recipe, rows)
    model, batch = model_of(dataset, 0.3), next(dataset.rows("validation", 1))
    counts = Counter(tag for row in rows for tag in (row["tags"] if "tags" in row else [row["label"]]))
    wanted = 0.0
    by_label = balanced(counts) if given == "balanced" else {label: 3.0}
    logits = model(batch.input)[0].double().flatten(0, -2)
    for scores, target in zip(logits, batch.targets.flatten().tolist(), strict=True):
        if target != IGNORED:
            nats = -scores.log_softmax(-1)
            smoothed = 0.9 * nats[target] + 0.1 * nats.mean()
            wanted += by_label.get(dataset.vocabulary.labels[target], 1.0) * float(smoothed)
    assert float(made.summed_loss(model, batch)) == pytest.approx(wanted, rel=1e-4)
    plain, _ = dataset_of(recipe_for(task), rows)
    assert float(made.observe(model, batch).loss) == pytest.approx(float(plain.observe(model, batch).loss))


def test_an_unknown_label_and_a_weight_of_zero_are_refused() -> None:
    recipe = recipe_for("classification")
    with pytest.raises(UserError, match=r"task\.class_weights: the data has no label 'aminal'; did you mean 'animal'"):
        dataset_of(recipe.changed(task={"kind": "classification", "class_weights": {"aminal": 2.0}}), ROWS)
    with pytest.raises(SpecError, match="class_weights"):
        recipe.changed(task={"kind": "classification", "class_weights": {"animal": 0.0}})


def test_a_run_stores_its_weights_and_resumes(tmp_path: Path) -> None:
    recipe = small_recipe("classification", tmp_path, steps=4)
    recipe = recipe.changed(task=recipe.task.changed(class_weights="balanced"))
    train(recipe, tmp_path / "run", on_event=ignore)
    stored: Any = read_recipe(tmp_path / "run")
    assert stored.task.class_weights.keys() == {"animal", "none"}
    train(recipe, tmp_path / "run", on_event=ignore)
    finished = type("Finished", (), {"recipe": stored})()
    assert _other(finished, recipe) == ""
    assert "class_weights" in _other(finished, recipe.changed(task=recipe.task.changed(class_weights={"none": 9.0})))


def test_rare_labels_with_low_recall_are_named() -> None:
    task: Any = Recipe.parse({"task": "classification", "model": {"head": "classification"}, "data": "x"}).task
    pairs = [(0, 0)] * 40 + [(1, 0)] * 8 + [(1, 1)] * 2 + [(2, 2)] * 9 + [(3, 0)] * 4
    counts = {"common": 300, "rare": 20, "found": 20, "few": 5}
    (note,) = rare_labels_note(task, tuple(counts), pairs, counts)
    assert note == "rare labels with low recall: 'rare' 20 % of 10; task.class_weights=balanced gives them more weight"
    weighted = task.changed(class_weights="balanced")
    assert rare_labels_note(weighted, tuple(counts), pairs, counts) == [
        "rare labels with low recall: 'rare' 20 % of 10"
    ]
    assert rare_labels_note(task, tuple(counts), pairs, dict.fromkeys(counts, 100)) == []


def test_weights_take_the_precision_of_the_losses() -> None:
    recipe = recipe_for("classification").changed(task={"kind": "classification", "class_weights": "balanced"})
    task, dataset = dataset_of(recipe, ROWS)
    model = model_of(dataset).double()
    assert task.summed_loss(model, next(dataset.rows("train", 1))).dtype == torch.float64
