"""Adapters in PEFT's files: put into the other library's model by the documented names, they give our logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.interop.battery import answered, every_case, made, our_answer, their_answer
from tests.interop.cases.case import Case
from torch import nn
from transformers.pytorch_utils import Conv1D

import qkv
from qkv.cli.main import main
from qkv.interop.adapters.write import CONFIG, WEIGHTS, adapter, save_adapter
from qkv.layers.linear.lora import adapters, merged
from qkv.models.build import build
from qkv.models.edit.adapt import adapt
from qkv.models.transformer import Transformer
from qkv.runs.storage.load import load_adapted
from qkv.spec.model import Model, Text
from qkv.spec.training import Training
from qkv.system.errors import UserError

NAMES = ("gpt2", "llama3-scaled", "bert-classes", "bert-tags", "t5", "bart")
TARGETS: dict[str, list[str]] = {"t5": ["qkv", "query", "memory"], "bart": ["qkv", "up"], "gpt2": ["qkv", "down"]}
ENDS = {
    "gpt2": {"c_attn", "mlp.c_proj"},
    "llama3-scaled": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "bert-classes": {"query", "key", "value", "attention.output.dense"},
}
"""What PEFT users write as target_modules of these models."""


def case_of(name: str) -> Case:
    return next(case for case in every_case() if case.name == name)


def learned(model: Transformer, **part: Any) -> Training:
    """Adapters and whatever else learns in ``model``, as if training had moved them."""
    training = Training.parse({"adapt": {"kind": "lora", "rank": 3, "alpha": 4.0, **part}})
    adapt(model, training)
    torch.manual_seed(5)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.2)
    return training


def put_in(model: nn.Module, folder: Path) -> set[str]:
    """What PEFT does with its two files, by hand: W + s B A, (W^T + s B A)^T for a Conv1D; the paths of the maps."""
    config, tensors = json.loads((folder / CONFIG).read_text()), load_file(folder / WEIGHTS)
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config["use_rslora"] else config["r"])
    inside = {name.removeprefix("base_model.model."): tensor for name, tensor in tensors.items()}
    paths = {name.removesuffix(".lora_A.weight") for name in inside if name.endswith(".lora_A.weight")}
    for path in paths:
        change = scale * inside.pop(f"{path}.lora_B.weight") @ inside.pop(f"{path}.lora_A.weight")
        layer = model.get_submodule(path)
        assert isinstance(layer, Conv1D) == config["fan_in_fan_out"]
        layer.weight.data += change.T if config["fan_in_fan_out"] else change  # type: ignore[operator,union-attr]
    for name, tensor in inside.items():
        assert name.rpartition(".")[0] in config["modules_to_save"]
        model.get_parameter(name).data.copy_(tensor)
    return paths


def meant(model: nn.Module, targets: list[str]) -> set[str]:
    """The maps that PEFT's rule takes: their path is a target or ends in a dot and a target."""
    maps = [name for name, module in model.named_modules() if isinstance(module, (nn.Linear, Conv1D))]
    return {name for name in maps if any(name == target or name.endswith(f".{target}") for target in targets)}


@pytest.mark.parametrize("name", NAMES)
def test_the_files_put_into_the_other_library_give_the_same_logits(name: str, tmp_path: Path) -> None:
    pair = made(case_of(name), tmp_path / "base")
    plain = our_answer(pair)
    training = learned(pair.ours, targets=TARGETS.get(name, ["qkv", "output"]))
    found = save_adapter(pair.ours, training, tmp_path / "adapter", "base", pair.published.spec)
    paths = put_in(pair.theirs, tmp_path / "adapter")
    assert paths == meant(pair.theirs, found.config["target_modules"])
    assert set(found.config["target_modules"]) == ENDS.get(name, set(found.config["target_modules"]))
    for ours in (our_answer(pair), _when_merged(pair)):
        found_there, found_here = answered(pair, their_answer(pair)), answered(pair, ours)
        assert (found_here - found_there).abs().max() < 1e-4 * found_there.abs().max()
    assert (our_answer(pair) - plain).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["gpt2", "llama3-scaled"])
@pytest.mark.parametrize("known", [True, False])
def test_a_token_that_the_model_gained_keeps_its_row(name: str, known: bool, tmp_path: Path) -> None:
    """Tied and untied heads; where the adapted model is not at hand, tables are written whatever their rows."""
    pair = made(case_of(name), tmp_path / "base")
    before = pair.ours.spec
    size = (before.vocab_size or 0) + 2
    assert isinstance(before.frontend, Text)
    ours = build(before.changed(frontend=before.frontend.changed(vocab_size=size)))
    for own, given in zip(ours.parameters(), pair.ours.parameters(), strict=True):
        own.data[: len(given)] = given.data
    found = save_adapter(ours, learned(ours, targets=["qkv"]), tmp_path / "adapter", "base", before if known else None)
    assert found.rows == size
    pair.theirs.resize_token_embeddings(size)
    config, tensors = json.loads((tmp_path / "adapter" / CONFIG).read_text()), load_file(tmp_path / "adapter" / WEIGHTS)
    whole = {key.removeprefix("base_model.model."): tensor for key, tensor in tensors.items() if "lora_" not in key}
    assert not config["modules_to_save"]
    for key, tensor in whole.items():  # as PEFT loads what has no adapter's name: into the parameter itself
        pair.theirs.get_parameter(key).data.copy_(tensor)
    (tmp_path / "rest").mkdir()
    save_file({key: tensor for key, tensor in tensors.items() if "lora_" in key}, tmp_path / "rest" / WEIGHTS)
    (tmp_path / "rest" / CONFIG).write_text(json.dumps(config))
    put_in(pair.theirs, tmp_path / "rest")
    ids = torch.tensor([[size - 1, 7, size - 2, 9]])
    with torch.no_grad():
        wanted = pair.theirs(ids).logits
        assert float((ours.eval()(ids)[0] - wanted).abs().max() / wanted.abs().max()) < 1e-4


def test_tables_of_as_many_rows_are_left_to_the_base_and_other_shapes_are_refused(tmp_path: Path) -> None:
    pair = made(case_of("gpt2"), tmp_path / "base")
    training, before = learned(pair.ours, targets=["qkv"]), pair.ours.spec
    assert adapter(pair.ours, training, "base", before).rows is None
    with pytest.raises(UserError, match=r"frontend.positions.table has the shape .* export the whole model"):
        adapter(pair.ours, training, "base", before.changed(context_length=before.context_length + 1))


def _when_merged(pair: Any) -> torch.Tensor:
    with merged(pair.ours):
        return our_answer(pair)


def test_what_the_config_says(tmp_path: Path) -> None:
    pair = made(case_of("bert-classes"), tmp_path / "base")
    save_adapter(pair.ours, learned(pair.ours, use_rslora=True, dropout=0.1), tmp_path / "adapter", "bert-base-uncased")
    config = json.loads((tmp_path / "adapter" / CONFIG).read_text())
    said = {
        key: config[key] for key in ("peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "bias")
    }
    assert said == {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS",
        "r": 3,
        "lora_alpha": 4.0,
        "lora_dropout": 0.1,
        "use_rslora": True,
        "bias": "none",
    }
    assert config["modules_to_save"] == ["bert.pooler.dense", "classifier"]
    assert config["base_model_name_or_path"] == "bert-base-uncased"
    names = set(load_file(tmp_path / "adapter" / WEIGHTS))
    assert "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight" in names
    assert "base_model.model.classifier.weight" in names


def test_a_model_of_no_family_keeps_its_names() -> None:
    spec = {
        "width": 8,
        "num_layers": 2,
        "frontend": {"kind": "text", "vocab_size": 9},
        "blocks": [{"branches": ["gru", "feed_forward"]}],
    }
    model = build(Model.parse(spec))
    found = adapter(model, learned(model, targets=["up"]))
    assert found.config["target_modules"] == ["up"]
    assert set(found.tensors) == {
        f"base_model.model.blocks.{i}.branches.1.body.up.{leaf}.weight"
        for i in range(2)
        for leaf in ("lora_A", "lora_B")
    }
    with pytest.raises(UserError, match=r"no adapter to write: .* training\.adapt=whole"):
        adapter(build(Model.parse(spec)), Training())


def test_the_command_writes_what_a_run_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog; " * 40)
    model = {"width": 8, "context_length": 16, "blocks": [{"branches": ["attention(2)", "feed_forward"]}]}
    training = {"steps": 2, "batch_size": 2, "adapt": "lora(2)", "validation": {"every": 2, "batches": 1}}
    recipe = qkv.Recipe.parse({"data": str(tmp_path / "text.txt"), "model": model, "training": training})
    qkv.train(recipe, tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--format", "peft"]) == 0
    assert "an adapter of rank 2 on" in capsys.readouterr().out
    tensors = load_file(tmp_path / "run-peft" / WEIGHTS)
    module = adapters(load_adapted(tmp_path / "run").model)["blocks.0.branches.0.body.output"]
    assert any(
        tensor.shape == module.lora_b.shape and torch.equal(tensor, module.lora_b) for tensor in tensors.values()
    )
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "whole")]) == 0
    assert "GPT-2" in capsys.readouterr().out
