"""Several processes that divide rows and weights make the steps of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.parallel.several import together, trained
from tests.training.kill_storm import small_recipe

from qkv.runs.storage.files import read_tensors
from qkv.runs.storage.folder import WEIGHTS
from qkv.runs.storage.load import load
from qkv.spec.recipe import Recipe

STEPS = 8
TIED = {"kind": "text", "positions": "none"}
MODELS: dict[str, dict[str, Any]] = {
    "plain": {"blocks": [{"branches": ["attention(num_heads=2)", "feed_forward"]}]},
    "experts": {
        "blocks": [
            {"branches": ["gru", {"kind": "mixture_of_experts", "num_experts": 4, "balance": "bias"}]},
        ]
    },
}
"""Models without dropout, whose random numbers would differ between processes."""


def recipe_of(text: Path, model: str = "plain", parallel: dict[str, Any] | None = None, **training: Any) -> Recipe:
    """A run of 7 rows a batch, two batches a step, so that 4 processes have 1 or 2 rows, and the last batches fewer."""
    settings = {"batch_size": 7, "accumulate": 2, "optimizer": "adamw", "sample_every": 100, **training}
    recipe = small_recipe(text, **{"steps": STEPS, **settings})
    sizes = {"width": 16, "num_layers": 2, "context_length": 16, **MODELS[model]}
    return recipe.changed(model=sizes, parallel=parallel or {})


def recipes_of(text: Path) -> dict[str, Recipe]:
    """Runs by name, each on its axes."""
    shards = {"shard": -1, "replicate": 1}
    return {
        "plain": recipe_of(text),
        "plain muon": recipe_of(text, optimizer="muon(lr=0.02)"),
        "plain few rows": recipe_of(text, batch_size=2),
        "experts": recipe_of(text, "experts"),
        "plain shards": recipe_of(text, parallel=shards),
        "plain muon shards": recipe_of(text, parallel=shards, optimizer="muon(lr=0.02)"),
        "plain few rows shards": recipe_of(text, parallel=shards, batch_size=2),
        "experts shards": recipe_of(text, "experts", shards),
        "plain recomputed shards": recipe_of(text, parallel=shards, recompute=True),
    }


@pytest.fixture(scope="module")
def alone(text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What one process finds, by the name of the run without its axes."""
    folder = tmp_path_factory.mktemp("alone")
    runs = {name: recipe for name, recipe in recipes_of(text).items() if "shards" not in name}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_WITHOUT", "native")
        return {name: trained(recipe, folder / name) for name, recipe in runs.items()} | {"folder": {"path": folder}}


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_processes_that_share_positions_make_the_steps_of_one(
    size: int, text: Path, alone: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Two processes share the positions; four divide the rows among two such pairs, some of which have no row."""
    by_heads = {"context": 2, "context_by": "heads"}
    recipes = {
        "plain": recipe_of(text, parallel={"context": 2}),
        "plain muon": recipe_of(text, parallel=by_heads, optimizer="muon(lr=0.02)"),
        "plain few rows": recipe_of(text, parallel={"context": 2}, batch_size=2),
        "experts": recipe_of(text, "experts", {"context": 2}),
        "refused": recipe_of(text, "experts", {"context": 2}, recompute=True),
    }
    results = together(tmp_path, size, recipes)
    assert all(result == results[0] for result in results)
    refused = results[0].pop("refused")["refused"]
    assert "training.recompute: blocks are computed twice, but the state of 'gru' goes from rank to rank" in refused
    for name, result in results[0].items():
        assert result["losses"] == pytest.approx(alone[name]["losses"], abs=1e-10), name
        assert result["norms"] == pytest.approx(alone[name]["norms"], rel=1e-9), name


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_several_processes_make_the_steps_of_one(
    size: int, text: Path, alone: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    recipes = recipes_of(text)
    if size == 4:
        recipes["plain both"] = recipe_of(text, parallel={"shard": 2})
    results = together(tmp_path, size, recipes)
    assert all(result == results[0] for result in results)
    for name, result in results[0].items():
        one = name.removesuffix(" both").removesuffix(" shards").removesuffix(" recomputed")
        expected = alone[one]
        assert result["losses"] == pytest.approx(expected["losses"], abs=1e-10), name
        assert result["norms"] == pytest.approx(expected["norms"], rel=1e-9), name
        assert result["counted"] == result["planned"] != {}, name
        ours = read_tensors(tmp_path / name / WEIGHTS)[0]
        theirs = read_tensors(alone["folder"]["path"] / one / WEIGHTS)[0]
        assert ours.keys() == theirs.keys()
        for tensor, value in ours.items():
            torch.testing.assert_close(value, theirs[tensor], rtol=1e-6, atol=1e-9)
    assert results[0]["plain"]["counted"] == {"allreduce_": 1}  # not one for each of the two batches
    assert load(tmp_path / "plain shards").step == STEPS
