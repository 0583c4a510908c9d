"""Runs side by side: settings that differ, metrics, steps, parameters, FLOPs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call
from tests.report.checks import read_page

import qkv as library
from qkv.runs.storage.load import load
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.training.compare import compare_runs, settings_that_differ

SMALL: dict[str, Any] = {
    "data": {"source": "text.txt", "tokenizer": "characters"},
    "model": {"width": 16, "context_length": 8, "blocks": [{"branches": ["attention(2)", "feed_forward"]}]},
    "training": {"steps": 4, "batch_size": 2, "schedule": "constant", "validation": {"every": 2, "batches": 1}},
}


def recipe(**model: Any) -> Recipe:
    return Recipe.parse({**SMALL, "model": {**SMALL["model"], **model}})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two finished runs of different width and seed, and one that has only begun."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("the cat sat on the mat; " * 200)
    found = []
    for name, changes in (("a", []), ("b", ["model.width=32", "training.seed=2"])):
        base = recipe().changed(data={"source": str(folder / "text.txt"), "tokenizer": "characters"})
        library.train(base, folder / name, overrides=changes, on_event=lambda _: None)
        found.append(folder / name)
    return found


def test_settings_are_those_that_differ_and_no_others() -> None:
    one = recipe()
    other = recipe(
        blocks=[{"branches": ["attention(2, relative='rope(base=500.0)')", "feed_forward"], "norm": "rms_norm"}]
    )
    found = settings_that_differ([one, other, one])
    assert found == {
        "model.blocks.0.branches.0.relative": ("none", "rope", "none"),
        "model.blocks.0.branches.0.relative.base": (None, 500.0, None),
        "model.blocks.0.norm": ("layer_norm", "rms_norm", "layer_norm"),
    }


def test_an_option_of_another_part_at_its_default_is_no_difference() -> None:
    found = settings_that_differ(
        [recipe(), recipe(blocks=[{"branches": ["attention(2, relative=rope)", "feed_forward"]}])]
    )
    assert list(found) == ["model.blocks.0.branches.0.relative"]


def test_results_are_those_of_the_runs(runs: list[Path]) -> None:
    found = compare_runs(*runs)
    assert found.settings == {"model.width": (16, 32), "training.seed": (1337, 2)}
    loaded = [load(run) for run in runs]
    assert found.figures["validation.loss"] == tuple(run.val_loss for run in loaded)
    assert found.counts["parameters"] == tuple(sum(p.numel() for p in run.model.parameters()) for run in loaded)
    assert found.counts["steps"] == (4, 4)
    assert found.counts["best step"] == tuple(run.step for run in loaded)
    small, large = found.counts["training FLOPs"]
    assert 2 * small < large < 4 * small
    assert found.machine == {}


def test_a_run_without_its_checkpoints_or_weights_is_compared_by_what_it_has(runs: list[Path], tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "spec.yaml").write_bytes((runs[0] / "spec.yaml").read_bytes())
    found = compare_runs(runs[0], bare)
    assert found.settings == {}
    assert found.counts["steps"] == (4, 0)
    assert found.figures["validation.loss"][1] is None
    read_page(found.report())


def test_the_command_prints_a_table_json_and_a_page(runs: list[Path], qkv: Call, tmp_path: Path) -> None:
    said = qkv("compare-runs", *runs, "--report", tmp_path / "out.html")
    assert said.code == 0
    assert [line.split() for line in said.out.splitlines() if line.startswith("model.width")] == [
        ["model.width", "16", "32"]
    ]
    content = json.loads(qkv("compare-runs", *runs, "--json").out)
    assert content["settings"]["model.width"] == [16, 32]
    assert content["runs"] == [str(run) for run in runs]
    page = read_page((tmp_path / "out.html").read_text())
    assert "model.width" in page.text
    assert page.count("svg") >= 1
    embedded = next(json.loads(script) for script in page.scripts if script.startswith("{"))
    assert embedded["comparison"] == content


def test_what_cannot_be_compared(runs: list[Path], qkv: Call, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs two or more"):
        compare_runs(runs[0])
    with pytest.raises(UserError, match="given twice"):
        compare_runs(runs[0], runs[1], runs[0].parent / "b" / ".." / "a")
    refused = qkv("compare-runs", runs[0], tmp_path / "none")
    assert (refused.code, refused.out) == (2, "")
    assert "there is no run folder" in refused.err
