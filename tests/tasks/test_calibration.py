"""Probabilities that mean what they say: the fitted temperature, the error of calibration, and what a run keeps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from tests.tasks.test_runs_of_examples import small_recipe
from tests.training.kill_storm import ignore

import qkv
from qkv.runs.inference.calibration import CALIBRATION, read_temperature
from qkv.runs.inference.predict import predict
from qkv.tasks.metrics.calibration import Scored, bins_of, calibration, calibration_error, fit_temperature
from qkv.training.loop import train


def drawn(rows: int, sharpness: float) -> Scored:
    """Rows whose class is drawn from softmax(z), and whose logits are ``sharpness`` · z."""
    generator = np.random.default_rng(rows)
    logits = 2 * generator.standard_normal((rows, 4))
    truth = (logits + generator.gumbel(size=logits.shape)).argmax(1)
    return Scored(sharpness * logits, truth)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 5.0])
def test_the_temperature_is_the_minimum_and_undoes_a_factor(sharpness: float) -> None:
    scored = drawn(4000, sharpness)
    found = fit_temperature(scored)

    def objective(log: float) -> float:
        scaled = torch.from_numpy(scored.logits) / math.exp(log)
        nats = torch.nn.functional.cross_entropy(scaled, torch.from_numpy(scored.truth), reduction="sum")
        return float(nats) + log**2 / 2

    assert found == pytest.approx(math.exp(minimize_scalar(objective, bounds=(-5, 5), method="bounded").x), rel=1e-4)
    assert found == pytest.approx(sharpness, rel=0.08)
    figures, section = calibration(scored, found)
    assert figures["calibration_error"] < 2.5
    if sharpness != 1.0:
        assert figures["calibration_error_before"] > 8
        assert f"temperature {found:.3g}" in section["note"]


def test_few_rows_make_no_probability_certain() -> None:
    right = Scored(np.tile([2.0, 0.0], (20, 1)), np.zeros(20, np.int64))
    assert 0.3 < fit_temperature(right) < 0.8
    assert fit_temperature(Scored(right.logits[:9], right.truth[:9])) == 1.0
    wrong = Scored(right.logits, 1 - right.truth)
    assert 1 < fit_temperature(wrong) < math.exp(5)


def test_the_error_is_that_of_a_loop_over_bins() -> None:
    scored = drawn(300, 2.0)
    chances = torch.from_numpy(scored.logits / 1.7).softmax(-1).numpy()
    bins: dict[int, list[tuple[float, bool]]] = {}
    for row, truth in zip(chances, scored.truth, strict=True):
        bins.setdefault(math.ceil(row.max() * 15), []).append((row.max(), row.argmax() == truth))
    wanted = sum(
        len(found) / 300 * abs(np.mean([c for c, _ in found]) - np.mean([r for _, r in found]))
        for found in bins.values()
    )
    found = bins_of(scored, 1.7)
    assert calibration_error(found) == pytest.approx(100 * wanted)
    assert sum(each["rows"] for each in found) == 300
    assert [each["rows"] for each in found] == [len(bins[i]) for i in sorted(bins)]
    assert all(each["low"] < each["confidence"] <= each["high"] + 1e-9 for each in found)


def test_a_certain_row_is_in_the_last_bin() -> None:
    (only,) = bins_of(Scored(np.array([[1000.0, 0.0]]), np.array([1])), 1.0)
    assert (only["high"], only["confidence"], only["accuracy"]) == (100, 100, 0)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    recipe = small_recipe("classification", tmp_path, 120, steps=10, batch_size=16)
    return train(recipe, tmp_path / "run", on_event=ignore)


def test_a_run_keeps_its_temperature_and_predicts_with_it(run: Any) -> None:
    stored = json.loads((run.folder / CALIBRATION).read_text())
    assert stored == {"step": run.step, "temperature": pytest.approx(run.temperature)}
    assert run.temperature != 1.0
    rows = [{"text": "the red cat sat"}, {"text": "then slept"}]
    scaled = predict(run, rows)
    (run.folder / CALIBRATION).unlink()
    for plain, found in zip(predict(run, rows), scaled, strict=True):
        powers = {label: p ** (1 / stored["temperature"]) for label, p in plain["probabilities"].items()}
        assert found["answer"] == plain["answer"]
        assert found["probabilities"] == pytest.approx({k: v / sum(powers.values()) for k, v in powers.items()})
        assert found["probability"] == found["probabilities"][found["answer"]]


def test_the_evaluation_shows_reliability_before_and_after(run: Any) -> None:
    found = run.evaluation["splits"]["validation"]
    assert {"calibration_error", "calibration_error_before"} <= found["figures"].keys()
    assert [section["kind"] for section in found["sections"]][-1] == "reliability"
    again = qkv.evaluate(run, "validation")
    assert again["calibration_error"] == pytest.approx(found["figures"]["calibration_error"])
    assert "Reliability of the probabilities" in (run.folder / "report.html").read_text()


@pytest.mark.parametrize(
    "content", ["", "[]", '{"step": 3}', '{"step": 3, "temperature": 0}', '{"step": 4, "temperature": 2}']
)
def test_a_file_of_other_weights_or_a_broken_one_is_ignored(content: str, tmp_path: Path) -> None:
    (tmp_path / CALIBRATION).write_text(content)
    assert read_temperature(tmp_path, 3) == 1.0
