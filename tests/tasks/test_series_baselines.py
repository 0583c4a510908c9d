"""Baselines of forecasts, against loops and a module of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.test_forecasting import opened, recipe_of
from torch import nn

from qkv.models.forecasts import build_forecast
from qkv.spec.errors import SpecError
from qkv.spec.forecasts import Gaussian, Point, Quantiles
from qkv.tasks.series_baselines import DLinear, baseline_errors, dataset_pair, fit_linear, linear_loss, naive
from qkv.training.loop import train


class Published(nn.Module):
    """DLinear as its authors write it: a moving average by average pooling of the window with repeated ends."""

    def __init__(self, context: int, horizon: int):
        super().__init__()
        self.average = nn.AvgPool1d(25, stride=1)
        self.season, self.trend = nn.Linear(context, horizon), nn.Linear(context, horizon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (B, T, C) -> (B, H, C)."""
        padded = torch.cat((x[:, :1].repeat(1, 12, 1), x, x[:, -1:].repeat(1, 12, 1)), 1)
        trend = self.average(padded.permute(0, 2, 1)).permute(0, 2, 1)
        rest = x - trend
        return (self.season(rest.permute(0, 2, 1)) + self.trend(trend.permute(0, 2, 1))).permute(0, 2, 1)


def test_dlinear_is_the_published_one_and_one_affine_map() -> None:
    torch.manual_seed(0)
    theirs, ours = Published(40, 5).double(), DLinear(40, 5).double()
    ours.season.load_state_dict(theirs.season.state_dict())
    ours.trend.load_state_dict(theirs.trend.state_dict())
    x = torch.randn(3, 40, 2, dtype=torch.float64)
    expected = theirs(x).permute(0, 2, 1)
    torch.testing.assert_close(ours(x.permute(0, 2, 1))[..., 0], expected)
    table, bias = ours.affine()
    torch.testing.assert_close(x.permute(0, 2, 1) @ table + bias, expected)


def test_errors_of_the_baselines_are_those_of_a_loop(tmp_path: Path) -> None:
    _, dataset, _ = opened(recipe_of(tmp_path, 2, True))
    assert dataset.processor.period == 6
    found = baseline_errors(dataset, "test")
    squares: dict[str, list[float]] = {"repeat_last": [], "seasonal": []}
    for windows in dataset.each("test"):
        for past, future in zip(windows.past, windows.future, strict=True):
            for step in range(3):
                for name, guess in (("repeat_last", past[-1]), ("seasonal", past[12 - 6 + step])):
                    squares[name] += ((guess - future[step]) ** 2).tolist()
    for name, values in squares.items():
        assert found[name].mean("squared") == pytest.approx(np.nanmean(values), rel=1e-5)
    assert found["dlinear"].mean("squared") < min(found[name].mean("squared") for name in squares)


@pytest.mark.parametrize("part", [Point(), Quantiles(), Gaussian()], ids=lambda part: part.kind)
def test_a_naive_model_repeats_values_and_learns_constants_alone(tmp_path: Path, part: Any) -> None:
    _, dataset, _ = opened(recipe_of(tmp_path))
    form = build_forecast(part)
    model = fit_linear(dataset, form, part.outputs, True, naive(dataset, 6, part.outputs, form))
    past, future = dataset_pair(next(dataset.each("validation")))
    moved = model(past + torch.arange(12.0)) - model(past)
    assert moved[0, 0, :, 0].tolist() == pytest.approx([6, 7, 8], abs=1e-4)
    if part.kind == "gaussian":
        assert moved[..., 1].abs().max() < 1e-4
    before = naive(dataset, 6, part.outputs, form)
    assert linear_loss(model, form, past, future, True)[0] <= linear_loss(before, form, past, future, True)[0]


WIDE = {"model__wide": "dlinear", "model__head__form": "quantiles"}


def test_the_run_keeps_the_best_contestant_of_the_validation_part(tmp_path: Path) -> None:
    notices: list[str] = []
    recipe = recipe_of(tmp_path, 2, **WIDE)
    run = train(recipe, tmp_path / "run", on_event=lambda event: notices.append(str(getattr(event, "text", ""))))
    assert run.evaluation is not None
    validation = run.evaluation["splits"]["validation"]
    table = next(section for section in validation["sections"] if section["kind"] == "contestants")
    names = [row[0] for row in table["rows"]]
    assert sorted(names) == sorted(["DLinear", "patches", "patches, DLinear", "seasonal naive", "repeat last"])
    losses = {row[0]: float(row[table["columns"].index("loss")]) for row in table["rows"]}
    assert losses[names[0]] == min(losses.values())
    assert validation["figures"]["loss"] == pytest.approx(losses[names[0]], rel=1e-3)
    assert f"chosen on the validation part: {names[0]}" in notices
    baselines = [value for name, value in validation["figures"].items() if name.startswith("mse_of")]
    assert validation["figures"]["mse"] < 1.2 * min(baselines)


def test_a_linear_path_needs_whole_windows_of_single_channels(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="'dlinear' adds to forecasts of the front end series_patches"):
        recipe_of(tmp_path, model__wide="dlinear", model__frontend={"kind": "series_patches", "normalise": "last"})
    with pytest.raises(SpecError, match="some steps are left out"):
        opened(recipe_of(tmp_path, task__dropped=0.5, **WIDE))
