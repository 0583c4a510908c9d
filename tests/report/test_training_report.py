"""The report says how a run went, whatever became of it."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from tests.report.checks import HOSTILE, page_data, read_page

from qkv.report.training import TrainingRun, loss_chart, training_report


def rows(steps: int, every: int = 100) -> list[dict[str, Any]]:
    generator = random.Random(0)
    made: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        loss = 1.4 + 2.8 * math.exp(-step / steps * 8)
        row = {
            "step": step,
            "time": step * 0.06,
            "loss": loss + generator.gauss(0, 0.05),
            "lr": 1e-3,
            "grad_norm": 1.0,
            "tokens_per_second": 12_000.0,
        }
        if step % every == 0:
            held_out = loss + 0.1
            row |= {
                "val_loss": held_out,
                "val_perplexity": math.exp(held_out),
                "val_bits_per_character": held_out / math.log(2) / 2,
            }
        made.append(row)
    return made


def run(**changes: Any) -> TrainingRun:
    given: dict[str, Any] = {
        "name": "tiny",
        "description": "A decoder of two layers.",
        "metrics": rows(1000),
        "spec_yaml": "model:\n  width: 64\n",
        "cost": [("parameters", "800,000")],
        "environment": {"torch": "2.13"},
        "samples": [{"step": 500, "text": "thend wist"}, {"step": 1000, "text": "The king is gone."}],
        "folder": "runs/tiny",
        "figures": {
            "total_steps": 1000,
            "parameters": 800_000,
            "flops": 7.9e12,
            "tokens": 768_000,
            "characters_per_token": 2.0,
            "clip_norm": 1.0,
        },
    }
    return TrainingRun(**(given | changes))


def cards(page: str) -> dict[str, str]:
    """Key figures by name."""
    text = page.split('<dl class="cards">')[1].split("</dl>")[0]
    parts = [piece.split("</dt>") for piece in text.split("<dt>")[1:]]
    return {name: rest.split(">")[1].split("<")[0] for name, rest in parts}


def test_a_finished_run() -> None:
    page = training_report(run())
    reader = read_page(page)
    loss = 1.5 + 2.8 * math.exp(-8)
    shown = cards(page)
    assert shown["Validation loss"] == f"{loss:.3f}"
    assert shown["Perplexity"] == f"{math.exp(loss):.3f}"
    assert shown["Bits per character"] == f"{loss / math.log(2) / 2:.3f}"
    assert (shown["Tokens per second"], shown["Parameters"], shown["Compute"]) == ("12k", "800k", "7.9T")
    assert shown["Training time"] == "1 min 00 s"
    for words in (
        "A decoder of two layers.",
        "The king is gone.",
        "thend wist",
        "width:",
        "800,000",
        "2.13",
        "qkv generate runs/tiny",
    ):
        assert words in reader.text
    assert "qkv train" not in reader.text
    assert reader.count("progress") == 0
    assert reader.count("svg") == 5
    assert not [a for _, a in reader.elements if a.get("http-equiv") == "refresh"]


def test_its_data_can_be_read_by_programs() -> None:
    data = page_data(training_report(run()))
    assert data["run"]["status"] == "finished"
    assert data["run"]["figures"]["parameters"] == 800_000
    assert len(data["run"]["validations"]) == 10
    assert [c["title"] for c in data["charts"]] == ["Loss", "Learning rate", "Gradient norm", "Tokens per second"]
    assert [line["name"] for line in data["charts"][0]["lines"]] == ["training", "training, mean", "validation"]


def test_a_run_in_progress_shows_how_far_it_is_and_reloads() -> None:
    reader = read_page(training_report(run(status="running", metrics=rows(400))))
    assert [a.get("content") for _, a in reader.elements if a.get("http-equiv") == "refresh"] == ["30"]
    assert "step 400 of 1,000, 40%" in reader.text
    assert reader.count("progress", value="400", max="1000") == 1


@pytest.mark.parametrize("spelling", ["1551", "1,551"])
def test_a_failed_run_says_step_and_layer_and_how_to_go_on(spelling: str) -> None:
    metrics = rows(1600)
    for row in metrics[1550:]:
        row["loss"] = math.nan
    message = f"The loss became NaN at step {spelling}, first in blocks.1.branches.0."
    reader = read_page(training_report(run(status="failed", metrics=metrics, message=message)))
    assert message in reader.text
    assert "first stopped being" not in reader.text
    assert "training: NaN at step 1,551 to 1,600" in reader.text
    assert "qkv train runs/tiny\n" in reader.text
    without = read_page(training_report(run(status="failed", metrics=metrics)))
    assert "The training loss became NaN or infinite at step 1,551." in without.text


def test_a_run_that_failed_before_its_first_step() -> None:
    reader = read_page(training_report(TrainingRun("x", status="failed")))
    assert "The run failed after step 0." in reader.text
    assert reader.count("svg") == 0


def test_a_best_loss_that_is_not_the_last_is_named() -> None:
    metrics = [{"step": s, "val_loss": v} for s, v in [(100, 2.0), (200, 1.5), (300, 1.75)]]
    reader = read_page(training_report(run(metrics=metrics)))
    assert "best 1.500 at step 200" in reader.text


def test_the_loss_is_logarithmic_where_it_falls_far() -> None:
    assert loss_chart(run()).y_log
    assert not loss_chart(run(metrics=[{"step": s, "loss": 2.0 - s / 10} for s in range(5)])).y_log
    assert not loss_chart(run(metrics=[{"step": s, "loss": 3.0 - s} for s in range(5)])).y_log


def test_events_stand_on_the_curve() -> None:
    metrics = [*rows(100), {"step": 50, "event": "resumed"}]
    assert loss_chart(run(metrics=metrics)).events == [(50, "resumed")]


def test_samples_are_found_in_the_metrics() -> None:
    metrics = [{"step": 7, "sample": "To be"}, {"step": 8, "loss": 1.0}, {"step": 9, "sample": "or not"}]
    reader = read_page(training_report(run(metrics=metrics, samples=[])))
    assert "After 9 steps:" in reader.text
    assert reader.text.index("or not") < reader.text.index("To be")


def test_folders_are_quoted_for_the_shell() -> None:
    reader = read_page(training_report(run(folder="my runs/$x")))
    assert "qkv evaluate 'my runs/$x'" in reader.text


@pytest.mark.parametrize("status", ["running", "finished", "stopped", "failed"])
def test_hostile_text_everywhere(status: Any) -> None:
    hostile = run(
        name=HOSTILE,
        description=HOSTILE,
        spec_yaml=HOSTILE,
        cost=[(HOSTILE, HOSTILE)],
        environment={HOSTILE: HOSTILE},
        samples=[{"step": 1, "text": HOSTILE}] * 3,
        folder=HOSTILE,
        message=HOSTILE,
        metrics=[{"step": 1, "loss": math.inf, "val_loss": -1.0, "event": HOSTILE}],
        status=status,
    )
    page = training_report(hostile)
    assert read_page(page).count("script") == 2
    assert page_data(page)["run"]["name"] == HOSTILE


def test_long_runs_make_small_pages() -> None:
    samples = [{"step": s, "text": "x" * 20_000} for s in range(100)]
    page = training_report(run(metrics=rows(20_000), samples=[]))
    assert len(page) < 200_000
    long = read_page(training_report(run(samples=samples)))
    assert long.text.count("and 14,000 more characters") == 24
    assert "After 99 steps:" in long.text
