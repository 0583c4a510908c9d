"""Pages on comparisons are made of the recorded ones, and their sentences follow from the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import choosing
import claims
import comparisons
import qkv
from qkv.spec.files.shipped import shipped, shipped_comparisons
from qkv.spec.recipes.comparison import base_recipe, entry_recipe, read_comparison


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


def test_pages_are_those_of_the_recorded_results() -> None:
    for path, sections in comparisons.PAGES.items():
        page = path.read_text(encoding="utf-8")
        assert comparisons.written(page, sections) == page


def test_characters_name_the_best_constant_state_and_rates_at_an_end() -> None:
    states = {
        "attention": choosing.Held(8, 4096, False),
        "gru": choosing.Held(8, 256, True),
        "lstm": choosing.Held(8, 512, True),
    }
    rows = [entry("attention", 1.5), entry("gru", 1.6), entry("lstm", 1.4)]
    text = choosing.characters(results(*rows), states)
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
    assert "others may be better: lstm, gru." in choosing.characters(results(*rows), states)


def test_recall_says_up_to_which_size_each_kind_of_state_answers() -> None:
    states = {
        "attention": choosing.Held(8, 4096, False),
        "gru": choosing.Held(8, 256, True),
        "sum": choosing.Held(8, 256, True),
    }
    found = results(
        entry("attention", 1.0, accuracy_at_2=1.0, accuracy_at_16=0.95),
        entry("gru", 0.6, accuracy_at_2=0.9, accuracy_at_16=0.89),
        entry("sum", 0.1, accuracy_at_2=0.3, accuracy_at_16=0.1),
    )
    text = choosing.by_size(found, states)
    assert "a state that grows, 90 % or more of the answers are right: attention up to 16." in text
    assert "of constant size, 90 % or more of the answers are right: gru up to 2; sum at no size." in text
    assert "| gru | 90.0 | 89.0 | 256 B | constant |" in text


def test_a_size_is_reached_with_all_smaller_ones() -> None:
    assert choosing._reach([8, 16, 32], [0.96, 0.86, 0.97]) == 8
    assert choosing._reach([8, 16, 32], [0.8, 0.95, 0.97]) == 0


def test_lengths_are_read_from_the_table_of_growth() -> None:
    table = "| model | a |\n| --- | --- |\n| exact | 1 |\n| linear | 2 |\n"
    page = f"<!-- table growth: x -->\n\n{table}\n<!-- end of table growth -->\n"
    assert choosing.growth_rows(page) == [["exact", "1"], ["linear", "2"]]


def test_recorded_results_are_of_shipped_comparisons_and_all_their_entries() -> None:
    for path in comparisons.RESULTS.glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        compared = read_comparison(shipped_comparisons()[path.stem])
        assert [row["name"] for row in content["entries"]] == list(compared.entries)
        if compared.scale:
            sizes = {run["size"] for run in content["entries"][0]["runs"]}
            assert sizes == {2**i for i in range(compared.scale)}
            continue
        assert content["seeds"] == list(compared.seeds)
        sizes = [row["parameters"] for row in content["entries"]]
        assert compared.equal != "parameters" or max(abs(size / sizes[0] - 1) for size in sizes) <= 0.01
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
    path = comparisons.record(tmp_path / "pair", tmp_path)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert path.name == "pair.json"
    assert content["entries"] == json.loads(json.dumps(ranking.plain()))["entries"]
    assert content["entries"][0]["figures"]["accuracy_at_128"] >= 0
    assert content["machine"]["threads"] >= 1


def test_claims_are_judged_by_the_corrected_test_and_the_direction_of_the_metric() -> None:
    plain = entry("attention", 1.5) | {"parameters": 1000}
    tested = {"difference_interval": [-0.2, -0.1], "difference": -0.15, "parameters": 840}
    rows = [
        plain,
        entry("simplified", 1.4) | tested | {"p_corrected": 0.01},
        entry("experts", 1.4) | tested | {"p_corrected": 0.06},
    ]
    idle = {"attention": 0, "simplified": 0, "experts": 590}
    text = claims.tested(results(*rows) | {"metric": "loss", "lower_is_better": True}, idle)
    assert "-16.0 % parameters, loss -0.1500 ± 0.05, better than attention at the 5 % level." in text
    assert "loss -0.1500 ± 0.05; no difference to attention is shown." in text
    assert "| experts | 840 | 250 | 1.400 ± 0.1 |" in text
    text = claims.tested(results(*rows) | {"metric": "accuracy", "lower_is_better": False}, None)
    assert "accuracy -0.1500 ± 0.05, worse than attention" in text


def test_scaling_tells_the_law_and_the_larger_run() -> None:
    runs = [{"parameters": 10_000 * n, "tokens": 1000, "loss": 2.0 / n, "size": n} for n in (1, 2)]
    law = {"law": {"E": 1.0}, "ranges": {"E": [0.5, 1.5]}}
    fitted = {"runs": runs, "larger": {"parameters": 40_000, "tokens": 8000, "loss": None}, **law}
    text = claims.scaling(results(fitted) | {"metric": "loss", "conclusions": ["a: measured."]})
    assert "| 20,000 | 1,000 | 1.000 |\n| 40,000 | 8,000 | failed |" in text
    assert "With intervals of 90 %: E = 1 (0.5–1.5). a: measured." in text


def test_memory_names_the_best_entry_within_a_state() -> None:
    states = {"attention": choosing.Held(8, 90_000, False), "gru": choosing.Held(8, 900, True)}
    text = choosing.memory(results(entry("attention", 0.9), entry("gru", 0.4)), states)
    assert "| 1 kB | gru | 40.0 | 900 B |" in text
    assert "| 20 kB | gru | 40.0 | 900 B |" in text
    assert "| 100 kB | attention | 90.0 | 90 kB |" in text


@pytest.mark.parametrize("name", sorted({name for name, _ in choosing.SECTIONS.values() if name}))
def test_entries_of_comparisons_for_the_guide_are_models_that_decode(name: str) -> None:
    assert name not in shipped()
    compared = read_comparison(name)
    base = base_recipe(compared)
    assert all(entry_recipe(base, entry, changes).model.decodes for entry, changes in compared.entries.items())
