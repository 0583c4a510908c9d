"""Forecasting: batches, metrics, runs and predictions."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from qkv.choosing.signals.forecasts import choose_forecast
from qkv.choosing.signals.register import RecipeRequest
from qkv.models.build import build
from qkv.runs.evaluation import measure
from qkv.runs.inference.predict import predict_table
from qkv.spec.data import Data
from qkv.spec.errors import SpecError
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import Forecasting
from qkv.system.errors import UserError
from qkv.tasks.registry import build_task
from qkv.tasks.series import series_baselines
from qkv.tasks.series.series_dataset import SeriesDataset
from qkv.training.loop import train

STEPS = 120


@pytest.fixture(autouse=True)
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear baselines are trained for a few steps only."""
    monkeypatch.setattr(series_baselines, "_FEWEST", 10)
    monkeypatch.setattr(series_baselines, "_EPOCHS", 1)


def table(folder: Path, columns: int = 1, gaps: bool = False) -> Path:
    rng, t = np.random.default_rng(0), np.arange(STEPS)
    values = np.stack(
        [10 + i + 3 * np.sin(2 * np.pi * (t + i) / 6) + rng.normal(0, 0.3, STEPS) for i in range(columns)], 1
    )
    lines = ["step," + ",".join(f"y{i}" for i in range(columns))]
    for i, row in enumerate(values):
        cells = ["" if gaps and i % 17 == 3 else f"{value:.4f}" for value in row]
        lines.append(f"{i}," + ",".join(cells))
    path = folder / "series.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


BLOCKS = [{"branches": ["attention(2, mask=full)", "feed_forward(8)"]}]
READER = {"kind": "series_patches", "patch": 4, "stride": 2}


def recipe_of(folder: Path, columns: int = 1, gaps: bool = False, **changes: Any) -> Recipe:
    data = {
        "name": "series",
        "data": {"source": str(table(folder, columns, gaps)), "columns": {"time": "step"}, "processor": "series"},
        "task": {"kind": "forecasting", "context": 12, "horizon": 3},
        "model": {"width": 8, "frontend": READER, "blocks": BLOCKS, "head": {"kind": "forecast", "over": "flatten"}},
        "training": {"steps": 6, "batch_size": 8, "schedule": "constant", "validation": {"every": 3}},
    }
    for path, value in changes.items():
        holder: Any = data
        *parents, last = path.split("__")
        for name in parents:
            holder = holder.setdefault(name, {})
        holder[last] = value
    return Recipe.parse(yaml.safe_load(yaml.safe_dump(data)))


def opened(recipe: Recipe) -> tuple[Any, SeriesDataset, Any]:
    task: Any = build_task(recipe.task)
    dataset = task.open(recipe)
    return task, dataset, build(dataset.recipe.model.changed(init_std=0.3), 1).double().eval()


def test_a_batch_depends_on_seed_and_step_alone(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, task__dropped=0.5)
    first, again = (build_task(recipe.task).open(recipe) for _ in range(2))
    for step in (5, 0, 5):
        a, b = first.batch(step), again.batch(step)
        assert torch.equal(a.input.values, b.input.values)
        assert torch.equal(a.targets, b.targets)
    assert not torch.equal(first.batch(0).input.values, first.batch(1).input.values)


@pytest.mark.parametrize("channels", ["apart", "mixed", "inverted"])
def test_metrics_are_those_of_a_loop_over_windows(tmp_path: Path, channels: str) -> None:
    over = "channels" if channels == "inverted" else "flatten"
    recipe = recipe_of(tmp_path, 2, True, model__frontend={**READER, "channels": channels}, model__head__over=over)
    task, dataset, model = opened(recipe)
    seen = measure(model.float(), task, dataset.rows("test"), "fp32")
    figures = task.evaluate(model, dataset, "test", seen, recipe).figures
    squares, absolutes, units = [], [], []
    mean, deviation = np.array(dataset.processor.mean), np.array(dataset.processor.deviation)
    values = np.genfromtxt(tmp_path / "series.csv", delimiter=",", skip_header=1)[:, 1:]
    scaled = (values - mean) / deviation
    filled = scaled.copy()
    for i in range(1, STEPS):
        filled[i] = np.where(np.isnan(scaled[i]), filled[i - 1], scaled[i])
    low = round(0.7 * STEPS) + round(0.1 * STEPS)
    for begin in range(low, STEPS - 2):
        past = torch.tensor(filled[begin - 12 : begin])[None].float()
        rows = past.transpose(1, 2).reshape(2, 12, 1) if channels == "apart" else past
        level = rows.mean(1, keepdim=True), (rows.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        with torch.no_grad():
            out = model(rows)[0][..., 0]
        out = (out * level[1].transpose(1, 2) + level[0].transpose(1, 2)).reshape(2, 3).numpy().T
        error = out - scaled[begin : begin + 3]
        squares += error[~np.isnan(error)].tolist()
        absolutes += np.abs(error[~np.isnan(error)]).tolist()
        units += (error * deviation)[~np.isnan(error)].tolist()
    assert figures["loss"] == pytest.approx(figures["mse"])
    assert figures["mse"] == pytest.approx(np.mean(np.square(squares)), rel=1e-4)
    assert figures["mae"] == pytest.approx(np.mean(absolutes), rel=1e-4)
    assert figures["rmse_in_units"] == pytest.approx(np.mean(np.square(units)) ** 0.5, rel=1e-4)
    assert seen.count == len(squares)


def test_coverage_and_crps_are_those_of_a_loop(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, 1, True, model__head__form="quantiles")
    task, dataset, model = opened(recipe)
    batch = next(dataset.rows("validation"))
    double = batch.input.values.double()
    figures = task.figures(measure(model.float(), task, [batch], "fp32"), dataset.scale("validation"))
    with torch.no_grad():
        outputs = task.restored(model.double(), type(batch).of(double, batch.targets))
    levels = model.head.form.levels
    inside, count, total = 0, 0, 0.0
    for row, targets in zip(outputs[:, 0].tolist(), batch.targets[:, 0].tolist(), strict=True):
        for quantiles, y in zip(row, targets, strict=True):
            if y == y:
                ordered, count = sorted(quantiles), count + 1
                inside += ordered[1] <= y <= ordered[9]
                ends = [0, *((a + b) / 2 for a, b in pairwise(levels)), 1]
                for i, (level, q) in enumerate(zip(levels, ordered, strict=True)):
                    total += (ends[i + 1] - ends[i]) * 2 * max(level * (y - q), (level - 1) * (y - q))
    assert figures["coverage_80"] == pytest.approx(inside / count)
    assert figures["crps"] == pytest.approx(total / count, rel=1e-4)


DECODER = {
    "model__frontend": "series_steps",
    "model__blocks": [{"branches": ["attention(2)", "cross_attention(2)", "feed_forward(8)"]}],
    "model__encoder": {"frontend": READER, "blocks": BLOCKS},
    "model__head": {"kind": "forecast", "over": "steps", "form": "gaussian"},
}


@pytest.mark.parametrize(
    "changes",
    [
        {"model__head__form": "student_t"},
        {"task__dropped": 0.5, "model__frontend": {**READER, "frequencies": 3}, "model__head__form": "point"},
        DECODER,
    ],
    ids=["student_t", "irregular", "encoder–decoder"],
)
def test_a_run_learns_resumes_bit_for_bit_and_forecasts(tmp_path: Path, changes: dict[str, Any]) -> None:
    recipe = recipe_of(tmp_path, 2, **changes)
    whole = train(recipe, tmp_path / "whole", on_event=lambda _: None)
    train(recipe.changed(training=recipe.training.changed(steps=3)), tmp_path / "parts", on_event=lambda _: None)
    resumed = train(recipe, tmp_path / "parts", on_event=lambda _: None)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    found = predict_table(whole, recipe.data.source, {})
    assert found.places == ("step", "column")
    assert [(row["step"], row["column"]) for row in found.rows[:3]] == [(120, "y0"), (120, "y1"), (121, "y0")]
    assert len(found.rows) == 6
    for row in found.rows:
        assert row.get("p5", 0) < row["answer"] < row.get("p95", 30)
        assert 0 < row["answer"] < 30  # in the units of the data


def test_covariates_of_the_future_are_read_by_the_decoder(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, 2, **DECODER, data__columns={"time": "step", "value": "y0", "known": "y1"})
    task, dataset, model = opened(recipe)
    windows = next(dataset.each("validation"))
    batch = dataset.collated(windows)
    assert batch.source is not None
    assert batch.input.values.tolist() == windows.known[:, 12:].tolist()
    assert batch.source.values[..., 1].tolist() == windows.known[:, :12, 0].tolist()
    assert task.summed_loss(model.float(), batch).isfinite()


def test_a_short_table_has_no_forecast(tmp_path: Path) -> None:
    run = train(recipe_of(tmp_path), tmp_path / "run", on_event=lambda _: None)
    short = tmp_path / "short.csv"
    short.write_text("step,y0\n" + "".join(f"{i},1\n" for i in range(8)))
    with pytest.raises(UserError, match=r"short\.csv has 8 steps up to its last value, but the model reads 12"):
        predict_table(run, str(short), {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task__parts": [0.7, 0.5]}, "the sum of the fractions is 1.2"),
        ({"task__parts": [100, 0.5]}, "0.5 is no number of steps"),
        ({"model__head__over": "channels"}, "the head reads 'channels'"),
        ({"data__processor": None}, "give data.processor=series"),
        ({**DECODER, "model__frontend": READER}, "a decoder of forecasts reads future steps"),
    ],
)
def test_recipes_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        recipe_of(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task__context": 100}, "the train split of .* has no window of 100 \\+ 3 steps"),
        ({"data__validation": "other.csv"}, r"data\.validation: series are split by time"),
        ({"data__processor": {"kind": "series", "calendar": True}}, "the series have no dates"),
        ({"model__frontend": {**READER, "steps": 9}}, "9 given, but the data has 12"),
    ],
)
def test_data_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    recipe = recipe_of(tmp_path, **changes)
    with pytest.raises((UserError, SpecError), match=message):
        build_task(recipe.task).open(recipe)


def test_a_part_without_targets_is_refused_or_moved_before_training(tmp_path: Path) -> None:
    source = tmp_path / "off.csv"
    days = [datetime(2023, 1, 1) + timedelta(days=i) for i in range(200)]
    rows = [f"{day:%Y-%m-%d},{i % 7}\n" for i, day in enumerate(days) if not 138 <= i < 162]
    source.write_text("date,level\n" + "".join(rows))
    asked = RecipeRequest(Forecasting(), Data(source=str(source)), ["task.horizon=7"])
    recipe = choose_forecast(asked)
    parts = recipe.task.parts
    assert sum(parts) == 200
    assert build_task(recipe.task).open(recipe).cutters["validation"].targets > 0
    fixed = recipe.changed(task=recipe.task.changed(parts=(0.7, 0.1, 0.2)))
    with pytest.raises(UserError, match=r"the validation split of .* \(2023-05-21 to 2023-06-09\) has no value"):
        build_task(fixed.task).open(fixed)
