"""Runs that begin with the blocks of another run, behind another front end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.runs.run import Run
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError

BLOCKS = [{"branches": ["attention(2, mask=full)", "feed_forward(16)"]}]
TRAINING: dict[str, Any] = {
    "steps": 4,
    "batch_size": 4,
    "optimizer": {"kind": "adamw", "lr": 0.01},
    "validation": {"every": 2},
}


def quiet(event: object) -> None:
    """Show nothing."""


def rows(count: int = 24) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [{"image": rng.integers(0, 256, (8, 8)).astype(np.uint8), "label": "ab"[i % 2]} for i in range(count)]


def recipe_of(source: Path, **changes: Any) -> Recipe:
    fields: dict[str, Any] = {
        "data": {"source": "memory", "processor": "images(height=8, width=8, channels=1)"},
        "task": "classification",
        "start": {"kind": "blocks", "source": str(source)},
        "model": {"frontend": "patches(patch=4)", "head": "classification(pooling=mean)"},
        "training": {**TRAINING, "frozen": ["blocks", "norm"]},
    }
    return Recipe.parse(fields | changes)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has learned to read texts."""
    model = {"width": 16, "num_layers": 2, "blocks": BLOCKS, "head": "classification(pooling=mean)"}
    recipe = Recipe.parse(
        {
            "data": {"source": "memory", "tokenizer": "word_list(min_frequency=1)"},
            "task": "classification",
            "model": model,
            "training": TRAINING,
        }
    )
    texts = [{"text": f"{'good' if i % 2 else 'bad'} thing {i}", "label": "ab"[i % 2]} for i in range(24)]
    return qkv.train(recipe, tmp_path_factory.mktemp("encoder") / "run", data=texts, on_event=quiet)


def of_blocks(run: Run) -> dict[str, torch.Tensor]:
    state = run.model.state_dict()
    return {name: each.clone() for name, each in state.items() if name.startswith(("blocks.", "norm."))}


def test_frozen_blocks_stay_those_of_the_run_while_the_front_end_learns(encoder: Run, tmp_path: Path) -> None:
    said = list[str]()
    folder = tmp_path / "run"
    run = qkv.train(
        recipe_of(encoder.folder),
        folder,
        data=rows(),
        on_event=lambda event: said.append(str(getattr(event, "text", ""))),
    )
    assert any("the blocks are those of" in text for text in said)
    assert (run.recipe.model.width, len(run.recipe.model.layers)) == (16, 2)
    before, after = of_blocks(encoder), of_blocks(run)
    assert before.keys() == after.keys()
    assert len(before) > 10
    assert all(torch.equal(before[name], after[name]) for name in before)
    drawn = qkv.build(run.recipe.model, run.recipe.training.seed)
    learned = {name: each for name, each in run.model.named_parameters() if name.startswith("frontend.map")}
    assert learned
    assert all(not torch.equal(each, drawn.get_parameter(name)) for name, each in learned.items())
    again = qkv.train(recipe_of(encoder.folder), folder, data=rows(), on_event=quiet)
    assert all(torch.equal(each, again.model.state_dict()[name]) for name, each in run.model.state_dict().items())


def test_blocks_that_do_not_fit_are_refused(encoder: Run, tmp_path: Path) -> None:
    model = {"width": 32, "frontend": "patches(patch=4)", "head": "classification(pooling=mean)"}
    with pytest.raises(UserError, match="differ from those of the recipe; leave out width"):
        qkv.train(recipe_of(encoder.folder, model=model), tmp_path / "run", data=rows(), on_event=quiet)
    with pytest.raises(UserError, match="neither a trained run nor a published checkpoint"):
        qkv.train(recipe_of(tmp_path / "none"), tmp_path / "run", data=rows(), on_event=quiet)
