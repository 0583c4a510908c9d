"""``qkv train forecast`` and the predictions of its run."""

from __future__ import annotations

import csv
import datetime
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Call

import qkv
from qkv.spec.files.yaml_io import read_recipe
from qkv.system.errors import UserError
from qkv.tasks.series import series_baselines

SHORT = ("training.steps=12", "training.minutes=null", "training.validation.every=6")


@pytest.fixture(autouse=True)
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear baselines are trained for a few steps only."""
    monkeypatch.setattr(series_baselines, "_FEWEST", 10)
    monkeypatch.setattr(series_baselines, "_EPOCHS", 1)


def sales(shops: int = 1, days: int = 120) -> list[dict[str, Any]]:
    rng, first = np.random.default_rng(0), datetime.date(2024, 1, 1)
    rows = []
    for shop in range(shops):
        for day in range(days):
            amount = 50 + 20 * shop + 10 * np.sin(2 * np.pi * day / 7) + rng.normal()
            date = first + datetime.timedelta(days=day)
            rows.append({"date": date.isoformat(), "shop": f"s{shop}", "amount": round(float(amount), 2)})
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_column_of_sales_is_forecast_in_its_units_with_dates(qkv: Call, tmp_path: Path) -> None:
    path, run = write(tmp_path / "sales.csv", sales()), tmp_path / "run"
    typed = ("train", "forecast", "--data", path, "--time", "date", "--value", "amount", "--horizon", "5", "--out", run)
    said = qkv(*typed, *SHORT)
    assert said.code == 0, said.err
    assert "the season has 7 steps" in said.err
    recipe = read_recipe(run)
    assert (recipe.task.kind, recipe.task.horizon, recipe.data.columns) == (  # type: ignore[attr-defined]
        "forecasting",
        5,
        {"time": "date", "value": "amount"},
    )
    for name in ("mse of repeat last", "mse of seasonal", "mse of dlinear", "contestants", f"qkv predict {run} --data"):
        assert name in said.out
    page = (run / "report.html").read_text()
    assert "Forecast 1" in page
    assert "Errors by step" in page
    found = qkv("predict", run, "--data", path)
    assert found.code == 0, found.err
    rows = list(csv.DictReader(io.StringIO(found.out)))
    assert [row["date"] for row in rows] == ["2024-04-30", *(f"2024-05-0{i}" for i in range(1, 5))]
    assert all(20 < float(row["answer"]) < 80 for row in rows)
    again = qkv(*typed)
    assert (again.code, "is finished" in again.err) == (0, True), again.err
    assert "give its table (--data FILE)" in qkv("predict", run, "tomorrow").err


def test_several_series_are_forecast_from_a_table_in_memory(tmp_path: Path) -> None:
    run = qkv.train(
        sales(2),
        tmp_path / "run",
        SHORT,
        task="forecast",
        time="date",
        value="amount",
        series="shop",
        horizon=3,
        on_event=lambda _: None,
    )
    found = qkv.predict(run, sales(2))
    assert [(row["shop"], row["date"]) for row in found] == [
        (f"s{shop}", date) for shop in range(2) for date in ("2024-04-30", "2024-05-01", "2024-05-02")
    ]
    with pytest.raises(UserError, match="give one table of series"):
        qkv.predict(run, "a", "b")


def test_arrays_and_frames_of_dates_are_series(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    values = np.array([row["amount"] for row in sales()])
    frame = pandas.DataFrame({"amount": values}, index=pandas.date_range("2024-01-01", periods=len(values)))
    quiet: dict[str, Any] = {"task": "forecast", "horizon": 2, "on_event": lambda _: None}
    of_array = qkv.train(values, tmp_path / "array", SHORT, **quiet)
    assert [row["step"] for row in qkv.predict(of_array, values)] == [1, 2]
    of_frame = qkv.train(frame, tmp_path / "frame", SHORT, **quiet)
    assert [row["time"] for row in qkv.predict(of_frame, frame)] == ["2024-04-30", "2024-05-01"]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda rows: rows[:20], ("--horizon", "14"), "has 20 steps, too few to learn to forecast 14"),
        (lambda rows: [*rows, rows[3]], (), "has two rows with the time '2024-01-04'"),
        (lambda rows: [{**row, "date": "x"} for row in rows], (), "120 of 120 time stamps"),
        (lambda rows: rows, ("--series", "town"), "has no column 'town'"),
        (lambda rows: rows, ("--horizon", "0"), "task.horizon"),
        (lambda rows: rows, ("--from", "bert-base-uncased"), "models of the task 'forecasting' are not fine-tuned"),
        (lambda rows: rows, ("--label", "shop"), "'label' is not an argument of the task 'forecast'"),
    ],
)
def test_unusable_series_are_refused_in_one_sentence(
    qkv: Call, tmp_path: Path, change: Any, options: tuple[str, ...], message: str
) -> None:
    path = write(tmp_path / "sales.csv", change(sales()))
    typed = ("train", "forecast", "--data", path, "--time", "date", "--value", "amount", *options)
    said = qkv(*typed, "--out", tmp_path / "run")
    assert said.code == 2
    assert message in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "run").exists()
