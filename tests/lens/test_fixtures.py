"""Fixtures for other engines: names, values and metadata of the written file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

import qkv
from qkv.cli.main import main
from qkv.interop.save import save_published
from qkv.ops.selection import choices
from qkv.spec import tokenizers
from qkv.spec.model import Model
from qkv.tokenizers.train import train

LLAMA: dict[str, Any] = {
    "width": 32,
    "num_layers": 2,
    "norm": "rms_norm",
    "frontend": {"kind": "text", "vocab_size": 40, "positions": "none"},
    "head": {"kind": "language_model", "tied": False},
    "blocks": [
        {
            "norm": "rms_norm",
            "branches": [
                {"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "bias": False, "relative": "rope"},
                {"kind": "gated_feed_forward", "hidden": 48},
            ],
        }
    ],
}

TRANSLATOR = {
    **LLAMA,
    "blocks": [{"branches": ["attention(4)", "cross_attention(4)", "feed_forward"]}],
    "encoder": {"num_layers": 1, "frontend": LLAMA["frontend"], "blocks": [{"branches": ["attention(4, mask=full)"]}]},
}
CLASSIFIER = {**LLAMA, "blocks": [{"branches": ["gru"]}], "head": {"kind": "classification", "num_classes": 3}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Published Llama with random weights and a tokenizer of words."""
    tokenizer = train(tokenizers.Words(vocab_size=40), [" ".join(f"w{i}" for i in range(30))])
    place = tmp_path_factory.mktemp("fixtures") / "llama"
    place.mkdir()
    save_published(qkv.build(Model.parse(LLAMA), seed=3).eval(), place, tokenizer)
    return place


def metadata(file: Path) -> dict[str, str]:
    with safe_open(file, "pt") as opened:
        return opened.metadata()


def test_values_equal_those_of_the_transformers_library(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    written = qkv.write_fixtures(folder, tmp_path / "f.safetensors", rows=3, length=7, new=5, dtype="fp64")
    values = load_file(written.file)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64)
    with torch.no_grad():
        out = model(values["input.values"], output_hidden_states=True, output_attentions=True)
    assert values["input.values"].shape == (3, 7)
    torch.testing.assert_close(values["output"], out.logits, rtol=1e-6, atol=1e-7)  # the library's norm is in fp32
    for layer in range(2):
        path = f"point.blocks.{layer}.branches"
        torch.testing.assert_close(values[f"{path}.0.residual_before"], out.hidden_states[layer], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(values[f"{path}.0.weights"], out.attentions[layer], rtol=1e-6, atol=1e-7)
    rows: Tensor = values["input.values"]
    for row, generated in zip(rows, values["generated"], strict=True):
        expected = model.generate(row[None], max_new_tokens=5, do_sample=False, eos_token_id=None)
        assert generated.tolist() == expected[0, 7:].tolist()


def test_metadata_describes_model_and_points(folder: Path, tmp_path: Path) -> None:
    written = qkv.write_fixtures(folder, tmp_path / "f.safetensors", ["w1 w2 w3", "w4"], ["weights"])
    said, values = metadata(written.file), load_file(written.file)
    assert said["format"] == "qkv fixtures 1"
    assert json.loads(said["texts"]) == ["w1 w2 w3", "w4"]
    assert Model.parse(json.loads(said["model"])) == qkv.load(folder).model.spec
    assert list(json.loads(said["points"])) == ["blocks.0.branches.0.weights", "blocks.1.branches.0.weights"]
    assert sorted(values) == sorted(
        ["generated", "input.lengths", "input.values", "output"]
        + [f"point.blocks.{i}.branches.0.weights" for i in range(2)]
    )
    tokenizer = qkv.load(folder).tokenizer
    assert values["input.lengths"].tolist() == [len(tokenizer.encode(text)) for text in ("w1 w2 w3", "w4")]
    assert written.count == len(values)
    assert written.nbytes == sum(tensor.nbytes for tensor in values.values())


def test_operations_are_references_and_no_choice_is_stored(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def race(*given: Any, **more: Any) -> Any:
        raise AssertionError("an implementation was timed")

    monkeypatch.setattr(choices.timing, "race", race)
    table = choices.ChoiceTable()
    with choices.using(table):
        qkv.write_fixtures(folder, tmp_path / "f.safetensors")
    assert not table.choices


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (TRANSLATOR, ["source.values", "point.encoder.frontend.output"]),
        ({**LLAMA, "blocks": [{"branches": ["linear_attention(2)"]}]}, ["point.blocks.0.branches.0.state"]),
        (CLASSIFIER, ["point.blocks.1.branches.0.output"]),
    ],
    ids=["encoder", "linear", "classifier"],
)
def test_other_models(model: dict[str, Any], names: list[str], tmp_path: Path) -> None:
    """Random rows of any model; an untrained run in memory."""
    folder = qkv.save(qkv.build(Model.parse(model)), tmp_path / "run")
    values = load_file(qkv.write_fixtures(folder, tmp_path / "f.safetensors").file)
    assert {"input.values", "output", *names} <= set(values)
    assert not any(tensor.isnan().any() for tensor in values.values())


def test_quantised_weights_compute_in_fp32(folder: Path, tmp_path: Path) -> None:
    run = qkv.quantize(folder, tmp_path / "small", bits=8).run
    with pytest.raises(qkv.UserError, match="has quantised weights, which compute in fp32; use fp32, or the original"):
        qkv.write_fixtures(run, tmp_path / "f.safetensors", dtype="fp64")
    values = load_file(qkv.write_fixtures(run, tmp_path / "f.safetensors").file)
    assert values["output"].dtype == torch.float32


def test_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.safetensors"
    assert main(["fixtures", str(folder), "--out", str(file), "--text", "w1 w2", "--point", "output"]) == 0
    assert capsys.readouterr().out.startswith(f"{file}: ")
    assert main(["fixtures", str(folder), "--out", str(file), "--point", "wieghts"]) == 2
    assert "no point 'wieghts'" in capsys.readouterr().err
    assert main(["fixtures", str(folder), "--out", str(file), "--dtype", "fp16"]) == 2
    assert "fp32 or fp64" in capsys.readouterr().err
    assert file.is_file()
    assert list(tmp_path.iterdir()) == [file]
