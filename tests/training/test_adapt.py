"""Runs of which not all weights learn: what moves, what the optimiser remembers, and that a kill changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.kill_storm import differences, ignore, live, small_recipe, write_text

import qkv
from qkv.layers.linear.lora import adapters
from qkv.models.build import build
from qkv.models.edit.quantize import widened
from qkv.ops.quantized.reference import pack
from qkv.runs.storage.checkpoint import CheckpointStore
from qkv.runs.storage.files import read_tensors
from qkv.runs.storage.load import load_adapted
from qkv.spec.models.quantization import Quantization
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.training.environment import FILE
from qkv.training.loop import train
from qkv.training.watch.events import Notice

LORA = {"kind": "lora", "rank": 2, "dropout": 0.1, "targets": ["qkv", "output", "up"]}
OPTIMISERS = ["adamw(lr=0.01)", "muon(lr=0.02)"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


def recipe_of(text: Path, steps: int, **training: Any) -> Recipe:
    return small_recipe(text, steps, sample_every=1000, **training)


def moved(folder: Path, recipe: Recipe) -> set[str]:
    """The parameters of a run that are not those that it began with."""
    begun = dict(build(recipe.model, recipe.training.seed).named_parameters())
    now = load_adapted(folder).model.state_dict()
    return {name for name, p in begun.items() if not torch.equal(now[name], p)}


def remembered(folder: Path) -> set[str]:
    checkpoint = CheckpointStore(folder / "resume").load(lambda _: None)
    assert checkpoint
    return {name.rpartition("/")[0] for name in checkpoint.tensors["optimizer"]}


@pytest.mark.parametrize("optimizer", OPTIMISERS)
def test_frozen_parameters_do_not_move_and_are_not_remembered(text: Path, tmp_path: Path, optimizer: str) -> None:
    recipe = recipe_of(text, 3, optimizer=optimizer, frozen=["frontend", "blocks.0"])
    run = train(recipe, tmp_path / "run", on_event=ignore)
    changed = moved(tmp_path / "run", run.recipe)
    assert changed == remembered(tmp_path / "run")
    assert {name.split(".")[1] for name in changed if name.startswith("blocks")} == {"1"}
    assert not any(name.startswith("frontend") for name in changed)


@pytest.mark.parametrize("optimizer", OPTIMISERS)
def test_lora_moves_its_matrices_alone_and_loads_merged(text: Path, tmp_path: Path, optimizer: str) -> None:
    said: list[str] = []
    recipe = recipe_of(text, 4, optimizer=optimizer, adapt=LORA)
    run = train(
        recipe, tmp_path / "run", on_event=lambda event: said.append(event.text) if isinstance(event, Notice) else None
    )
    assert not moved(tmp_path / "run", run.recipe)
    stored, _ = read_tensors(tmp_path / "run" / "model.safetensors")
    small = {name for name in stored if name.endswith(("lora_a", "lora_b"))}
    assert small == remembered(tmp_path / "run")
    assert len(small) == 2 * 2 * 4
    assert any("parameters are trainable" in sentence and "lora" in sentence for sentence in said)
    apart = load_adapted(tmp_path / "run")
    assert adapters(apart.model)
    assert not adapters(run.model)
    ids = torch.arange(6)[None]
    torch.testing.assert_close(run.model(ids)[0], apart.model(ids)[0], rtol=1e-4, atol=1e-5)
    assert (run.model(ids)[0] - build(run.recipe.model, run.recipe.training.seed).eval()(ids)[0]).abs().max() > 1e-4
    assert qkv.evaluate(run, batches=2)["loss"] == pytest.approx(qkv.evaluate(apart, batches=2)["loss"], rel=1e-5)
    assert len(qkv.generate(run, "ab", max_new_tokens=4)) >= 1


def test_rates_multiply_what_a_step_changes(text: Path, tmp_path: Path) -> None:
    """One step of AdamW moves every number by about its rate."""
    still = {"optimizer": "adamw(lr=0.001, weight_decay=0.0)", "schedule": "constant", "clip_norm": None}
    recipe = recipe_of(text, 1, rates={"blocks.1": 0.25, "blocks": 0.5, "frontend": 2.0}, **still)
    run = train(recipe, tmp_path / "run", on_event=ignore)
    begun = dict(build(run.recipe.model, run.recipe.training.seed).named_parameters())
    found: dict[str, set[float]] = {}
    for name, now in run.model.named_parameters():
        step = (now - begun[name]).abs().max().item() / 0.001
        found.setdefault(name[:8], set()).add(round(step, 2))
    assert found == {"frontend": {2.0}, "blocks.0": {0.5}, "blocks.1": {0.25}, "norm.wei": {1.0}, "norm.bia": {1.0}}


def test_a_killed_run_with_adapters_ends_bit_for_bit_where_it_would_have(text: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    recipe = recipe_of(text, 16, adapt=LORA, frozen=["blocks.0.branches.0.*"], rates={"blocks.1": 0.5})
    live(recipe, tmp_path / "straight", None, 0)
    (tmp_path / "killed" / "resume").mkdir(parents=True)
    shutil.copy(tmp_path / "straight" / "resume" / FILE, tmp_path / "killed" / "resume")
    assert live(recipe, tmp_path / "killed", 9, 0.0) < 16
    live(recipe, tmp_path / "killed", None, 0)
    assert differences(tmp_path / "straight", tmp_path / "killed") == []


def test_another_adapter_is_another_recipe_and_the_default_is_none(text: Path, tmp_path: Path) -> None:
    recipe = recipe_of(text, 1)
    train(recipe, tmp_path / "run", on_event=ignore)
    assert not {"adapt", "frozen", "rates"} & recipe.essential()["training"].keys()
    with pytest.raises(UserError, match=r"training\.adapt\.kind is"):
        train(recipe_of(text, 1, adapt=LORA), tmp_path / "run", on_event=ignore)


def test_a_rate_for_nothing_is_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"training\.rates: no parameter has a path like 'blocs'; did you mean"):
        train(recipe_of(text, 1, rates={"blocs": 0.5}), tmp_path / "run", on_event=ignore)


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_frozen_weights_stay_narrow_beside_adapters(text: Path, tmp_path: Path, bits: int) -> None:
    """A run whose frozen weights are quantised holds what it was quantised from, resumes bit for bit, and predicts with
    its adapters.
    """
    recipe = recipe_of(text, 4, adapt={**LORA, "dropout": 0.0}).changed(quantized=Quantization(bits=bits))  # type: ignore[arg-type]
    whole = train(recipe, tmp_path / "whole", on_event=ignore)
    train(recipe.changed(training=recipe.training.changed(steps=2)), tmp_path / "part", on_event=ignore)
    train(recipe, tmp_path / "part", on_event=ignore)
    ends = [CheckpointStore(tmp_path / name / "resume").load(lambda _: None) for name in ("whole", "part")]
    assert ends[0]
    assert ends[1]
    for name, tensor in ends[0].tensors["weights"].items():
        assert torch.equal(ends[1].tensors["weights"][name], tensor), name
    tensors, _ = read_tensors(tmp_path / "whole" / "model.safetensors")
    stored = next(tensor for name, tensor in tensors.items() if name.endswith("qkv.matrix.stored"))
    assert stored.dtype == {16: torch.bfloat16, 8: torch.int8, 4: torch.uint8}[bits]
    model = load_adapted(tmp_path / "whole").model
    begun = build(whole.recipe.model, recipe.training.seed)
    for path, adapter in adapters(model).items():
        assert adapter.lora_b.abs().max() > 0
        packed = pack(begun.get_submodule(path).weight, bits, recipe.quantized.size if recipe.quantized else 0)  # type: ignore[arg-type]
        assert torch.equal(adapter.stored, packed.stored)
    ids = torch.arange(8)[None] % 5
    with torch.no_grad():
        ours, dense = whole.model(ids)[0], widened(model)(ids)[0]
    assert (ours - dense).abs().max() <= 0.05 * dense.abs().max()
    assert qkv.generate(whole, "a", max_new_tokens=4)


def test_quantised_weights_are_trained_only_beside_adapters(text: Path, tmp_path: Path) -> None:
    recipe = recipe_of(text, 2).changed(quantized=Quantization(bits=8))
    with pytest.raises(UserError, match=r"quantised to 8 bits and cannot be trained; .* training\.adapt=lora"):
        train(recipe, tmp_path / "run", on_event=ignore)
    assert not (tmp_path / "run" / "spec.yaml").exists()
