"""Numbers for texts: their unit, the loss, the figures, and the answer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.tables import dataset_of, model_of, recipe_for, rows_of

from qkv.runs.evaluation import measure
from qkv.spec.tasks import Regression
from qkv.system.errors import UserError
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.labels.regression import closeness
from qkv.tasks.registry import build_task

ROWS = rows_of("regression", 20)


def opened(
    rows: list[dict[str, Any]] = ROWS, held_out: list[dict[str, Any]] | None = None, **options: Any
) -> tuple[Any, ExampleDataset]:
    return dataset_of(recipe_for(options.pop("task", "regression"), **options), rows, held_out)


def test_the_unit_is_that_of_the_training_values_and_the_recipe_holds_it() -> None:
    _, dataset = opened(held_out=[{"text": "a cat", "value": 500.0}])
    values = [row["value"] for row in ROWS]
    task = dataset.recipe.task
    assert isinstance(task, Regression)
    assert task.mean == pytest.approx(sum(values) / 20)
    assert task.deviation == pytest.approx(math.sqrt(sum((v - task.mean) ** 2 for v in values) / 20))
    assert type(dataset.recipe).parse(dataset.recipe.to_dict()) == dataset.recipe
    (batch,) = dataset.rows("validation")
    assert float(batch.targets) == pytest.approx((500 - task.mean) / task.deviation)
    assert batch.num_targets == 1


def test_a_unit_that_is_given_is_kept() -> None:
    _, dataset = opened(task="regression(mean=0.0, deviation=2.0)", training={"batch_size": 20})
    batch = next(dataset.rows("validation"))
    assert sorted(batch.targets.tolist()) == sorted(row["value"] / 2 for row in ROWS)


def test_a_value_that_looks_like_an_ignored_target_counts() -> None:
    _, dataset = opened(
        [{"text": "a", "value": -100.0}, {"text": "b", "value": 0.0}], task="regression(mean=0.0, deviation=1.0)"
    )
    batch = next(dataset.rows("validation"))
    assert (sorted(batch.targets.tolist()), batch.num_targets) == ([-100, 0], 2)


def test_the_loss_is_the_squared_error_in_float64() -> None:
    task, dataset = opened()
    model, batch = model_of(dataset), next(dataset.rows("validation", 1))
    assert batch.input.lengths is not None
    wanted = 0.0
    for ids, target, length in zip(
        batch.input.values, batch.targets.double(), batch.input.lengths.tolist(), strict=True
    ):
        wanted += float((model(ids[None, :length])[0][0, 0].double() - target) ** 2)
    assert float(task.summed_loss(model, batch)) == pytest.approx(wanted, rel=1e-4)


def test_an_evaluation_is_in_the_units_of_the_data() -> None:
    task, dataset = opened()
    model = model_of(dataset)
    seen = measure(model, task, dataset.rows("validation"), "fp32")
    assert seen is not None
    evaluation = task.evaluate(model, dataset, "validation", seen, dataset.recipe)
    answers = task.predict(model, dataset.vocabulary, dataset.recipe, ROWS)
    true, found = np.array([row["value"] for row in ROWS]), np.array([answer["value"] for answer in answers])
    assert evaluation.figures["rmse"] == pytest.approx(math.sqrt(((true - found) ** 2).mean()), rel=1e-4)
    assert evaluation.figures["mae"] == pytest.approx(abs(true - found).mean(), rel=1e-4)
    assert evaluation.figures["pearson_r"] == pytest.approx(np.corrcoef(true, found)[0, 1], abs=1e-4)
    assert evaluation.figures["rmse_of_mean"] == pytest.approx(true.std())
    assert evaluation.figures["loss"] == pytest.approx((evaluation.figures["rmse"] / true.std()) ** 2, rel=1e-4)
    errors = [abs(float(answer) - float(truth)) for _, answer, truth in evaluation.sections[0]["rows"]]
    assert errors == sorted(errors, reverse=True)
    assert answers[0]["answer"] == f"{answers[0]['value']:.4g}"


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50)), min_size=2, max_size=9), st.floats(-5, 5))
def test_figures_are_those_of_torch(pairs: list[tuple[float, float]], mean: float) -> None:
    found = closeness(pairs, mean)
    true, said = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    assert found["rmse"] == pytest.approx(float(torch.nn.functional.mse_loss(said, true).sqrt()))
    assert found["mae"] == pytest.approx(float(torch.nn.functional.l1_loss(said, true)))
    assert found["rmse_of_mean"] == pytest.approx(float(((true - mean) ** 2).mean().sqrt()))
    if min(float(true.std()), float(said.std())) > 1e-3:
        assert found["pearson_r"] == pytest.approx(float(torch.corrcoef(torch.stack((true, said)))[0, 1]), abs=1e-9)


def test_figures_of_nothing_and_of_a_constant_are_no_numbers() -> None:
    assert all(map(math.isnan, closeness([], 0.0).values()))
    assert math.isnan(closeness([(1.0, 2.0), (3.0, 2.0)], 0.0)["pearson_r"])


def test_a_long_text_is_cut_and_said_so() -> None:
    rows = [{"text": "a cat sat on the mat", "value": 1.0}, {"text": "a", "value": 2.0}]
    task, dataset = opened(rows, data={"tokenizer": "characters"}, context_length=8)
    assert dataset.notes == (
        "2 of 4 examples were truncated: their text is longer than the 7 tokens that fit (the longest has 20)",
    )
    answers = task.predict(model_of(dataset), dataset.vocabulary, dataset.recipe, rows)
    assert answers[0]["note"] == "the input has 20 tokens and the model reads 7; the rest was not read"
    assert "note" not in answers[1]


def test_what_cannot_be_learned_or_read_is_refused() -> None:
    with pytest.raises(UserError, match=r"every example of 'table' has the value 2, so there is nothing to learn"):
        opened([{"text": "a", "value": 2.0}, {"text": "b", "value": 2.0}])
    task, dataset = opened()
    with pytest.raises(UserError, match="text: 5 is not a text"):
        task.predict(model_of(dataset), dataset.vocabulary, dataset.recipe, [{"text": 5}])
    bare, batch = build_task(Regression()), next(dataset.rows("validation"))
    with pytest.raises(UserError, match=r"task\.mean and task\.deviation are not set"):
        bare.observe(model_of(dataset), batch)
