"""``qkv cost``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Call

import qkv as package
from qkv.costs.measuring.machine import Machine, store_machine, stored_machine
from qkv.spec.files.yaml_io import read_recipe
from qkv.system.processor import processor_name

MODEL = """\
width: 32
context_length: 24
frontend: text(vocab_size=50)
blocks:
- branches: [attention(4), feed_forward]
"""
HERE = Machine(processor_name(), {"fp32": 1e11, "bf16": 2e11}, 1e10, 1e-6)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL)
    return path


def test_a_preset_by_name(qkv: Call) -> None:
    said = qkv("cost", "gpt3")
    assert said.code == 0
    assert "174,604,259,328" in said.out
    assert "not estimated: this machine has" in said.out, "2.8 TB do not fit"


def test_one_object_of_json(qkv: Call, model: Path) -> None:
    store_machine(HERE)
    found = json.loads(qkv("cost", model, "--json", "--batch-size", 3, "--length", 5, "--precision", "bf16").out)
    assert (found["batch_size"], found["length"], found["precision"]) == (3, 5, "bf16")
    assert found["parameters"]["total"] == 50 * 32 + 24 * 32 + 12 * 32 * 32 + 13 * 32 + 2 * 32
    assert found["tokens_per_second"]["train"] > 0
    assert "check" not in found


@pytest.mark.parametrize("change", ["num_layers=3", "model.num_layers=3"])
def test_changes(qkv: Call, model: Path, change: str) -> None:
    before, after = (
        json.loads(qkv("cost", model, *more, "--json").out)["parameters"]["total"] for more in ([], [change])
    )
    assert after - before == 2 * (12 * 32 * 32 + 13 * 32)


def test_the_function_counts_as_the_command_does(qkv: Call, model: Path, folder: Path, run: Path) -> None:
    for spec in ("gpt2", model, folder / "tiny.yaml", run):
        found = json.loads(qkv("cost", spec, "model.num_layers=3", "--json", "--length", 5).out)
        del found["spec"], found["tokens_per_second"]
        counted = package.cost(spec, length=5, overrides=["model.num_layers=3"])
        assert json.loads(json.dumps(counted.to_dict())) == found, spec
    recipe = read_recipe(folder / "tiny.yaml")
    assert package.cost(recipe).parameters == package.cost(folder / "tiny.yaml").parameters
    with pytest.raises(package.UserError, match="there is no file, recipe or preset 'gpt4'; did you mean 'gpt"):
        package.cost("gpt4")


def test_a_recipe_in_bf16_is_counted_as_it_runs_here(folder: Path) -> None:
    changes = ["training.precision=bf16"]
    assert package.cost(folder / "tiny.yaml", overrides=changes).precision == "bf16"
    store_machine(replace(HERE, flops={"fp32": 1e11, "bf16": 1e10}))
    assert package.cost(folder / "tiny.yaml", overrides=changes).precision == "fp32"
    assert package.cost(folder / "tiny.yaml", precision="bf16").precision == "bf16"


def test_a_preset_is_changed_too(qkv: Call) -> None:
    found = json.loads(qkv("cost", "gpt2", "model.head.tied=false", "--json").out)
    assert found["parameters"]["total"] == 124_439_808 + 50257 * 768


def test_a_recipe_has_its_own_batch_and_vocabulary(qkv: Call, folder: Path, run: Path) -> None:
    found = json.loads(qkv("cost", folder / "tiny.yaml", "--json").out)
    trained = read_recipe(run).model.vocab_size
    assert trained is not None
    assert found["batch_size"] == 2
    assert found["parameters"]["embedding"] == (trained + 16) * 16


@pytest.mark.parametrize(("tokenizer", "ids"), [("bytes", 256), ("bpe(300)", 300), ("words(77)", 77)])
def test_a_vocabulary_that_the_recipe_tells(qkv: Call, folder: Path, tokenizer: str, ids: int) -> None:
    found = json.loads(qkv("cost", folder / "tiny.yaml", f"data.tokenizer={tokenizer}", "--json").out)
    assert found["parameters"]["embedding"] == (ids + 16) * 16


TRANSLATION = """\
data: {source: pairs.csv, columns: {source: de, target: en}, tokenizer: words(50)}
task: translation
model:
  width: 16
  context_length: 12
  blocks: [{branches: ["gru", "additive_attention"]}]
  encoder: {context_length: 9, blocks: [{branches: ["gru(direction=both)"]}]}
training: {batch_size: 3}
"""
LABELS = """\
data: {source: pairs.csv, columns: {text: de, label: en}, tokenizer: characters}
task: classification
model: {width: 16, context_length: 12, blocks: [{branches: ["attention(2, mask=full)"]}], head: classification}
"""


def recipe_of_pairs(folder: Path, text: str) -> Path:
    rows = [f"ein Wort {i},{'one' if i % 2 else 'two'}" for i in range(40)]
    (folder / "pairs.csv").write_text("\n".join(["de,en", *rows]), encoding="utf-8")
    path = folder / "recipe.yaml"
    path.write_text(text.replace("pairs.csv", str(folder / "pairs.csv")), encoding="utf-8")
    return path


def test_an_encoder_decoder_takes_its_sizes_from_its_pairs(qkv: Call, tmp_path: Path) -> None:
    path = recipe_of_pairs(tmp_path, TRANSLATION)
    said = qkv("cost", path, "--source-length", 5, "--length", 7)
    assert "1 encoder layer and 1 layer of width 16; 3 rows of 5 and 7 positions, fp32" in said.out
    assert "encoder gru" in said.out
    found = json.loads(qkv("cost", path, "--json", "--check").out)
    assert found["source_length"] == 9
    assert {"parameters", "decoding state"} <= {row["quantity"] for row in found["check"] if row["error"] == 0}
    assert found["parameters"]["encoder embedding"] == found["parameters"]["embedding"] - 3 * 16


def test_a_classifier_takes_its_classes_from_its_labels(qkv: Call, tmp_path: Path) -> None:
    found = json.loads(qkv("cost", recipe_of_pairs(tmp_path, LABELS), "--json").out)
    assert found["parameters"]["head"] == 2 * 16 + 2
    assert "decoding state" not in qkv("cost", recipe_of_pairs(tmp_path, LABELS)).out


def test_a_run_folder(qkv: Call, run: Path) -> None:
    said = qkv("cost", run)
    assert said.code == 0
    assert "1 layer of width 16; 2 rows of 16 positions, fp32" in said.out


def test_without_a_probe_it_says_so(qkv: Call, model: Path) -> None:
    assert "has not been measured; use --probe" in qkv("cost", model).out
    store_machine(replace(HERE, processor="abacus"))
    assert "has not been measured" in qkv("cost", model).out


def test_a_probe_is_kept(qkv: Call, model: Path) -> None:
    assert "training, estimated tokens/s" in qkv("cost", model, "--probe").out
    assert stored_machine() is not None
    assert "training, estimated tokens/s" in qkv("cost", model).out


def test_a_cache_that_cannot_be_written(qkv: Call, model: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    said = qkv("cost", model, "--probe")
    assert said.code == 2
    assert "set QKV_CACHE to another folder" in said.err


def test_checked_against_the_built_model(qkv: Call, model: Path) -> None:
    store_machine(HERE)
    lines = qkv("cost", model, "--check").out.splitlines()
    compared = lines[lines.index("predicted and measured") :]
    assert next(line for line in compared if line.startswith("parameters")).endswith("+0.0%")
    for name in (
        "FLOPs, forward",
        "peak memory, training step",
        "decoding state",
        "prefill, tokens/s",
        "decoding, tokens/s",
    ):
        assert any(line.startswith(name) for line in compared), name


def test_checked_in_json(qkv: Call, model: Path) -> None:
    rows = json.loads(qkv("cost", model, "--check", "--json").out)["check"]
    assert {"quantity": "parameters", "unit": "", "predicted": 15136, "measured": 15136, "error": 0.0} in rows


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gpt4"], "there is no file, recipe or preset 'gpt4'; did you mean 'gpt"),
        (["missing.yaml"], "missing.yaml"),
        (["gpt3", "--check"], "a training step needs about"),
        (["gpt2", "--length", "4096"], "4096 positions are more than the 1024"),
        (["gpt2", "--source-length", "5"], "the model has no encoder; omit it"),
        (["gpt2", "--batch-size", "0"], "the batch size is 0"),
        (["gpt2", "--precision", "fp8"], "there is no precision 'fp8'"),
        (["gpt2", "widht=3"], "did you mean 'width'?"),
    ],
)
def test_bad_input(qkv: Call, arguments: list[str], sentence: str) -> None:
    said = qkv("cost", *arguments)
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert said.err.count("\n") == 1
