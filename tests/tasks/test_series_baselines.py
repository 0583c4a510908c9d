"""Baselines of forecasts, against loops and a module of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.test_forecasting import READER, STEPS, opened, recipe_of
from torch import nn

from qkv.models.heads.forecasts import build_forecast
from qkv.models.wide import LinearWindow
from qkv.runs.evaluation import evaluate
from qkv.runs.inference.predict import predict_table
from qkv.runs.storage.load import load
from qkv.spec.errors import SpecError
from qkv.spec.models.forecasts import Gaussian, Point, Quantiles, StudentT
from qkv.spec.models.wide import LinearWindow as Dlinear
from qkv.tasks.series import series_baselines
from qkv.tasks.series.series_baselines import DLinear, baseline_errors, dataset_pair, level, predictors, with_intervals
from qkv.training.loop import train
from qkv.training.wide.window import convex


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
    torch.testing.assert_close(ours.affine()(x.permute(0, 2, 1)), expected)


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


@pytest.fixture(scope="module", params=[0.0, 0.5])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Windows, half of whose steps may have no value; the first test fits the baselines."""
    reader = {**READER, "frequencies": 2 if request.param else 0}
    folder = tmp_path_factory.mktemp("series")
    return opened(recipe_of(folder, 2, True, task__dropped=request.param, model__frontend=reader))[1]


@pytest.mark.parametrize("part", [Point(), Quantiles(), Quantiles(levels=(0.3, 0.6, 0.9)), Gaussian(), StudentT()])
def test_a_baseline_as_wide_path_keeps_its_points_and_gains_intervals(dataset: Any, part: Any) -> None:
    """Also where half of the steps have no value, and any of them has the one before it."""
    windows = next(dataset.each("train"))
    form, past, future = build_forecast(part), *dataset_pair(windows)
    batch, (shift, scale) = dataset.collated(windows), (each.flatten() for each in level(windows))
    path = LinearWindow(Dlinear(steps=12), 3 * part.outputs)
    for points in predictors(dataset).values():
        path.load_state_dict({**path.state_dict(), **with_intervals(dataset, points, form, part.outputs)._asdict()})
        rows = past.flatten(0, 1)
        outputs = path(batch.input).view(len(rows), 3, part.outputs)
        restored = form.restored(outputs, shift[:, None], scale[:, None])
        torch.testing.assert_close(form.point(restored), points(rows), atol=2e-5, rtol=1e-4)
        if part.kind in ("gaussian", "student_t"):
            inside = (form.quantiles(restored)[..., [1, -2]] - future.flatten(0, 1)[..., None]).sign().prod(-1) < 0
            assert 0.6 < float(inside[~future.flatten(0, 1).isnan()].float().mean()) < 0.99  # of the 80 % interval


def test_student_t_is_fitted_by_moments() -> None:
    errors = torch.from_numpy(np.random.default_rng(0).standard_t(8, (200_000, 1)) * 0.5)
    outputs = build_forecast(StudentT()).restored(
        build_forecast(StudentT()).around(errors), torch.zeros(1), torch.ones(1)
    )
    assert outputs[0].tolist() == pytest.approx([0, 0.5, 8], rel=0.15)


WIDE = {"wide": "dlinear", "model__head__form": "quantiles"}


def test_the_run_keeps_the_best_contestant_of_the_validation_part(tmp_path: Path) -> None:
    notices: list[str] = []
    recipe = recipe_of(tmp_path, 2, **WIDE)
    run = train(recipe, tmp_path / "run", on_event=lambda event: notices.append(str(getattr(event, "text", ""))))
    assert run.evaluation is not None
    validation = run.evaluation["splits"]["validation"]
    table = next(section for section in validation["sections"] if section["kind"] == "contestants")
    names = [row[0] for row in table["rows"]]
    single = ["patches", "normalised DLinear", "DLinear", "seasonal naive", "repeat last"]
    assert set(single) <= set(names)
    columns = {name: {row[0]: float(row[i]) for row in table["rows"]} for i, name in enumerate(table["columns"]) if i}
    splits = {name: each["figures"] for name, each in run.evaluation["splits"].items()}
    assert validation["figures"]["loss"] == pytest.approx(columns["loss"][names[0]], rel=1e-3)
    assert splits["test"]["mse"] == pytest.approx(columns["test mse"][names[0]], rel=1e-3)
    assert f"chosen on the validation split: {names[0]}" in notices
    (tested,) = (each for each in run.evaluation["splits"]["test"]["sections"] if each["kind"] == "contestants")
    assert [row[0] for row in tested["rows"]] == names
    assert [float(row[tested["columns"].index("mse")]) for row in tested["rows"]] == list(columns["test mse"].values())
    for label, name in (("DLinear", "dlinear"), ("repeat last", "repeat_last"), ("seasonal naive", "seasonal")):
        assert columns["mse"][label] == pytest.approx(validation["figures"][f"mse_of_{name}"], rel=1e-3)
        assert columns["test mse"][label] == pytest.approx(splits["test"][f"mse_of_{name}"], rel=1e-3)


def test_the_mixture_has_the_least_error_of_all_convex_ones() -> None:
    rng = np.random.default_rng(0)
    for case in range(4):
        errors = rng.normal(size=(3, 50)) * [[1], [1 + case], [2]] + rng.normal(size=50)
        products = errors @ errors.T / 50
        share = np.array(convex(products))
        assert share.min() >= 0
        assert share.sum() == pytest.approx(1)
        others = rng.dirichlet(np.ones(3) / 2, 2000)
        assert share @ products @ share <= np.einsum("ni,ij,nj->n", others, products, others).min() + 1e-9
    assert convex(np.zeros((2, 2))) == [1.0, 0.0]
    assert convex(np.array([[np.nan, np.nan], [np.nan, 1.0]])) == [0.0, 1.0]


def season(folder: Path) -> str:
    """Table of a season that repeats exactly, with other levels after each 24 steps."""
    shape = np.random.default_rng(3).normal(size=6)
    path = folder / "season.csv"
    path.write_text("y\n" + "\n".join(f"{shape[i % 6] + i // 24 % 5:.4f}" for i in range(STEPS)) + "\n")
    return str(path)


@pytest.mark.parametrize("form", ["point", "quantiles"])
def test_no_printed_baseline_is_better_on_the_validation_part(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series_baselines, "_FEWEST", 10)
    monkeypatch.setattr(series_baselines, "_EPOCHS", 1)
    recipe = recipe_of(tmp_path, wide="dlinear", model__head__form=form, data__columns={})
    recipe = recipe.changed(data=recipe.data.changed(source=season(tmp_path)))
    run = train(recipe, tmp_path / "run", on_event=lambda _: None)
    assert run.evaluation is not None
    figures = run.evaluation["splits"]["validation"]["figures"]
    baselines = {name: value for name, value in figures.items() if name.startswith("mse_of")}
    assert len(baselines) == 3
    assert figures["mse"] <= min(baselines.values()) + 1e-6
    assert min(baselines, key=baselines.__getitem__) == "mse_of_seasonal"
    again = evaluate(load(tmp_path / "run")).figures
    assert {name: again[name] for name in ("mse", "loss")} == {name: figures[name] for name in ("mse", "loss")}
    values = np.loadtxt(season(tmp_path), skiprows=1)
    rows = predict_table(load(tmp_path / "run"), season(tmp_path), {}).rows
    assert [row["answer"] for row in rows] == pytest.approx(values[-6:-3].tolist(), abs=1e-3)


def test_a_run_that_keeps_patches_shows_all_contestants(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, wide={"kind": "dlinear", "keeps": "deep"}, data__columns={})
    recipe = recipe.changed(data=recipe.data.changed(source=season(tmp_path)))
    run = train(recipe, tmp_path / "run", on_event=lambda _: None)
    assert run.evaluation is not None
    validation = run.evaluation["splits"]["validation"]
    table = next(section for section in validation["sections"] if section["kind"] == "contestants")
    errors = {row[0]: float(row[table["columns"].index("mse")]) for row in table["rows"]}
    names, own = list(errors), ["patches", "patches, normalised DLinear"]
    kept = [name for name in own if name in errors]
    assert names[: len(kept)] == sorted(kept, key=errors.__getitem__)
    assert {"normalised DLinear", "DLinear", "seasonal naive", "repeat last"} <= set(names)
    assert min(errors, key=errors.__getitem__) == "seasonal naive"
    assert validation["figures"]["mse"] == pytest.approx(errors[names[0]], rel=1e-3)
    assert f"of the first {len(kept)}, which the run may keep," in table["note"]
    assert evaluate(load(tmp_path / "run")).figures["mse"] == validation["figures"]["mse"]


def test_a_linear_path_needs_whole_windows_of_single_channels(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="'dlinear' adds to forecasts of the front end series_patches"):
        recipe_of(tmp_path, wide="dlinear", model__frontend={"kind": "series_patches", "normalise": "last"})
    with pytest.raises(SpecError, match="needs the times of the values if some steps are left out"):
        opened(recipe_of(tmp_path, task__dropped=0.5, **WIDE))
