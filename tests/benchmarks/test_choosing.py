"""docs/choosing.md is made of the recorded comparisons, and its sentences follow from their figures."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.spec.comparison import base_recipe, entry_recipe, read_comparison
from qkv.spec.shipped import shipped, shipped_comparisons

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "recipes" / "choosing.py"))
HELD, RESULTS = SCRIPT["Held"], SCRIPT["RESULTS"]


def entry(name: str, mean: float, **figures: float) -> dict[str, Any]:
    """Result of one entry, as a comparison writes it."""
    found = {"name": name, "mean": mean, "interval": [mean - 0.1, mean + 0.1], "difference": None, "failed": None}
    costs = {"p_corrected": None, "rate": 1.0, "training_flops": 1e12, "rates_tried": {"1": mean}}
    return {**found, **costs, "figures": figures}


def results(*entries: dict[str, Any]) -> dict[str, Any]:
    """Recorded comparison of ``entries``."""
    machine = {"processor": "a processor", "threads": 1}
    made = {"machine": machine, "versions": {"torch": "2.13"}, "date": "2026-01-02"}
    said = {"conclusions": ["Best mean loss (validation): one, 1."], "equal": "parameters", "baseline": "attention"}
    return {**made, **said, "seeds": [1, 2], "entries": list(entries)}


def test_the_page_is_that_of_the_recorded_results() -> None:
    page = SCRIPT["PAGE"].read_text(encoding="utf-8")
    assert SCRIPT["written"](page) == page


def test_characters_name_the_best_constant_state_and_rates_at_an_end() -> None:
    states = {"attention": HELD(8, 4096, False), "gru": HELD(8, 256, True), "lstm": HELD(8, 512, True)}
    rows = [entry("attention", 1.5), entry("gru", 1.6), entry("lstm", 1.4)]
    text = SCRIPT["characters"](results(*rows), states)
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")][2:] == [
        "| lstm",
        "| attention",
        "| gru",
    ]
    assert "Lowest loss with a decoding state of constant size: lstm, 1.400, 512 B" in text
    assert "others may be better" not in text
    tried = {"0.5": 1.0, "1": 1.1, "2": 1.2}
    for row, rate in zip(rows, (1.0, 0.5, 2.0), strict=True):
        row |= {"rates_tried": tried, "rate": rate}
    assert "others may be better: lstm, gru." in SCRIPT["characters"](results(*rows), states)


def test_recall_says_up_to_which_size_each_kind_of_state_answers() -> None:
    states = {"attention": HELD(8, 4096, False), "gru": HELD(8, 256, True), "sum": HELD(8, 256, True)}
    found = results(
        entry("attention", 1.0, accuracy_at_2=1.0, accuracy_at_16=0.95),
        entry("gru", 0.6, accuracy_at_2=0.9, accuracy_at_16=0.89),
        entry("sum", 0.1, accuracy_at_2=0.3, accuracy_at_16=0.1),
    )
    text = SCRIPT["by_size"](found, states)
    assert "a state that grows, 90 % or more of the answers are right: attention up to 16." in text
    assert "of constant size, 90 % or more of the answers are right: gru up to 2; sum at no size." in text
    assert "| gru | 90.0 | 89.0 | 256 B | constant |" in text


def test_a_size_is_reached_with_all_smaller_ones() -> None:
    assert SCRIPT["_reach"]([8, 16, 32], [0.96, 0.86, 0.97]) == 8
    assert SCRIPT["_reach"]([8, 16, 32], [0.8, 0.95, 0.97]) == 0


def test_lengths_are_read_from_the_table_of_growth() -> None:
    table = "| model | a |\n| --- | --- |\n| exact | 1 |\n| linear | 2 |\n"
    page = f"<!-- table growth: x -->\n\n{table}\n<!-- end of table growth -->\n"
    assert SCRIPT["growth_rows"](page) == [["exact", "1"], ["linear", "2"]]


def test_recorded_results_are_of_shipped_comparisons_and_all_their_entries() -> None:
    for path in RESULTS.glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        compared = read_comparison(shipped_comparisons()[path.stem])
        assert [row["name"] for row in content["entries"]] == list(compared.entries)
        assert content["seeds"] == list(compared.seeds)
        sizes = [row["parameters"] for row in content["entries"]]
        assert max(abs(size / sizes[0] - 1) for size in sizes) <= 0.01
        assert {tuple(row["rates_tried"]) for row in content["entries"]} == {tuple(f"{r:g}" for r in compared.rates)}


def test_a_finished_comparison_is_recorded_with_its_machine(tmp_path: Path) -> None:
    tiny = ["training.steps=2", "training.schedule.warmup=1", "training.batch_size=2", "task.sizes=[2]"]
    ranking = qkv.compare(
        "copying",
        {"attention": []},
        tmp_path / "pair",
        seeds=[1],
        rates=[1],
        overrides=tiny,
    )
    path = SCRIPT["record"](tmp_path / "pair", tmp_path)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert path.name == "pair.json"
    assert content["entries"] == json.loads(json.dumps(ranking.plain()))["entries"]
    assert content["entries"][0]["figures"]["accuracy_at_128"] >= 0
    assert content["machine"]["threads"] >= 1


@pytest.mark.parametrize("name", shipped_comparisons())
def test_entries_of_shipped_comparisons_are_models_that_decode(name: str) -> None:
    assert name not in shipped()
    compared = read_comparison(name)
    base = base_recipe(compared)
    assert all(entry_recipe(base, entry, changes).model.decodes for entry, changes in compared.entries.items())
