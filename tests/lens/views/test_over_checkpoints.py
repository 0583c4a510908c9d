"""One probe on every kept checkpoint of a run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.training.kill_storm import ignore

import qkv
from qkv.lens.views.over_checkpoints import OverCheckpoints, over_checkpoints
from qkv.models.transformer import Transformer
from qkv.runs.storage.checkpoint import read_checkpoint
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.training.loop import train

IDS = torch.tensor([[1, 2, 3]])


@pytest.fixture(scope="module")
def folder(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("kept") / "run"
    model = {"width": 8, "num_layers": 1, "context_length": 8, "blocks": [{"branches": ["attention(2)"]}]}
    training = {"steps": 6, "batch_size": 2, "checkpoints": {"every": 2, "keep": 9}}
    train(Recipe.parse({"data": str(text), "model": model, "training": training}), place, on_event=ignore)
    return place


@torch.no_grad()
def logit(model: Transformer) -> float:
    return float(model(IDS)[0][0, -1, 0])


def test_values_are_those_of_each_checkpoint(folder: Path) -> None:
    found = over_checkpoints(folder, logit)
    assert found.steps == (2, 4, 6)
    model = qkv.load(folder, copy=True).model
    for step, value in zip(found.steps, found.values["value"], strict=True):
        weights = read_checkpoint(folder / "resume" / f"step-{step:08d}").tensors["weights"]
        model.load_state_dict(weights, strict=False)
        assert logit(model) == pytest.approx(value)
    assert len(set(found.values["value"])) == 3


def test_several_values_by_name(folder: Path) -> None:
    found = over_checkpoints(qkv.load(folder), lambda model: {"a": logit(model), "b": 1.0})
    assert found.values["b"] == (1.0, 1.0, 1.0)
    assert found.values["a"] == over_checkpoints(folder, logit).values["value"]


def test_the_first_step_above_a_bound() -> None:
    found = OverCheckpoints((2, 4, 6), {"x": (math.nan, 0.5, 0.3)})
    assert found.first_step("x", 0.3) == 4
    assert found.first_step("x", 0.6) is None


def test_a_run_without_checkpoints_is_refused(tmp_path: Path, folder: Path) -> None:
    for name in ("spec.yaml", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(UserError, match="keeps no checkpoint"):
        over_checkpoints(tmp_path, logit)
