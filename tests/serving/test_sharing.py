"""Adapters of one base beside it: their texts are those alone, and its weights are held once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tests.interop.test_mapped import written_anew
from tests.serving.conftest import serving
from tests.serving.models import text_run
from tests.serving.test_completions import alone
from tests.serving.test_robust import LONG, metric, posted

import qkv
from qkv.generation.decode.speculate import Speculator
from qkv.interop.files import mapped
from qkv.layers.linear.lora import adapters
from qkv.models.edit.adapt import add_adapters
from qkv.models.edit.sharing import weight_bytes
from qkv.runs.run import Run
from qkv.runs.storage.checkpoint import save_weights
from qkv.runs.storage.folder import WEIGHTS
from qkv.runs.storage.identity import MADE_WITH, made_with
from qkv.serving.engine.model import ServedModel, share
from qkv.serving.limits import Limits
from qkv.spec.files.yaml_io import read_recipe, write_spec
from qkv.spec.generation import Speculation
from qkv.spec.training import Training
from qkv.system.errors import UserError

NAMES = ("base", "first", "second")


def adapter(base: Path, folder: Path, seed: int) -> None:
    """Write a run of adapters that have learned something."""
    shutil.copytree(base, folder)
    recipe = read_recipe(folder).changed(training=Training.parse({"steps": 1, "adapt": "lora(2)"}))
    write_spec(folder / "spec.yaml", recipe)
    model = qkv.load(base, copy=True).model
    add_adapters(model, recipe.training)
    torch.manual_seed(seed)
    for layer in adapters(model).values():
        torch.nn.init.normal_(layer.lora_b, std=0.3)
    save_weights(folder / WEIGHTS, model, {"step": 1, MADE_WITH: made_with(recipe, folder)})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    run = text_run(folder)
    qkv.save(run.model, folder / "base", run.tokenizer)
    for i, name in enumerate(NAMES[1:]):
        adapter(folder / "base", folder / name, i)
    return {name: folder / name for name in NAMES}


def opened(folders: dict[str, Path], draft: Path | None = None) -> dict[str, ServedModel]:
    """Models that keep their adapters, with a draft each."""

    def proposing(run: Run) -> Speculator:
        assert draft
        return Speculator(Speculation(kind="draft", num_tokens=2), qkv.load(draft).model)

    speculation = proposing if draft else None
    return {name: ServedModel(name, folder, Limits(), speculation, True) for name, folder in folders.items()}


def test_adapters_answer_as_alone_and_hold_the_weights_of_their_base_once(folders: dict[str, Path]) -> None:
    models = opened(folders)
    whole = sum(weight_bytes(model.networks) for model in models.values())
    saved = share(models.values())
    with serving(models) as server:
        texts = {}
        for name, folder in folders.items():
            answer = posted(server, **{**LONG, "model": name, "max_tokens": 30}).json()
            texts[name] = answer["choices"][0]["text"]
            assert texts[name] == alone(qkv.load(folder), "the", max_new_tokens=30, temperature=0.0)
        assert len(set(texts.values())) == 3
        own = weight_bytes(models["base"].networks)
        assert saved >= 2 * own
        assert metric(server, "qkv_weight_bytes") == whole - saved
        assert whole - saved < 1.5 * own


def test_drafts_are_held_once(folders: dict[str, Path]) -> None:
    models = opened({"base": folders["base"], "first": folders["first"]}, draft=folders["second"])
    share(models.values())
    (_, draft), (_, other) = (model.networks for model in models.values())
    assert draft is not other
    assert weight_bytes([draft, other]) == weight_bytes([draft])


@pytest.mark.skipif(not mapped.CAN_MAP, reason="files are not mapped here")
def test_the_file_that_holds_the_weights_of_several_is_watched_for_all(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    own = {name: shutil.copytree(folder, tmp_path / name) for name, folder in folders.items()}
    models = opened(own)
    share(models.values())
    written_anew(own["base"] / WEIGHTS)
    for model in models.values():
        with pytest.raises(UserError, match=r"base.model\.safetensors was changed while a model"):
            model.run.model(torch.zeros(1, 1, dtype=torch.long))
