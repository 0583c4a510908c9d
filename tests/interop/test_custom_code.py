"""Folders with a model file of their own: transformers opens them through qkv, and computes the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cli.conftest import folder, qkv, run  # noqa: F401

from qkv.interop.custom_code import save_with_code
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.model import Model
from qkv.system.errors import UserError

VOCAB, LENGTH, NEW = 13, 24, 8
WINDOW = "attention(4, num_kv_heads=2, head_dim=6, mask='causal & window(3, sinks=1)', relative=alibi(scaled=true))"
ROPE = {
    "kind": "attention",
    "num_heads": 3,
    "num_kv_heads": 1,
    "head_dim": 8,
    "value_dim": 5,
    "qk_norm": "rms_norm",
    "softcap": 4.0,
    "bias": False,
    "output_bias": True,
    "temperature": 1.5,
    "relative": {"kind": "rope", "fraction": 0.75, "scaling": {"kind": "yarn", "factor": 4.0, "original_length": 8}},
}
SPECS: dict[str, dict[str, object]] = {
    "attention and GRU": {"blocks": [{"branches": ["attention(4)", "gru", "feed_forward(20)"]}]},
    "windows, linear attention, by turns": {
        "frontend": {"kind": "text", "positions": "none", "scale": True},
        "blocks": [
            {"branches": [WINDOW, "gated_feed_forward(20)"], "order": "post", "norm": "rms_norm"},
            {
                "branches": ["linear_attention(4)", "feed_forward(20, activation=relu2)"],
                "order": "sandwich",
                "residual": "scaled(0.7)",
            },
        ],
        "norm": "none",
        "head": {"kind": "language_model", "tied": False, "bias": True, "softcap": 3.0},
    },
    "rotary, shift, convolution, side by side": {
        "frontend": {"kind": "text", "positions": "sinusoidal", "join": "concatenate", "norm": "layer_norm"},
        "blocks": [
            {
                "branches": [ROPE, "token_shift(3)", "causal_convolution(3, dilation=2)"],
                "order": "parallel",
                "residual": "gated(0.4)",
            },
            {
                "branches": [
                    "causal_convolution(2, gated=false)",
                    "gated_feed_forward(20, activation=quick_gelu, bias=true)",
                ],
                "order": "parallel",
                "norms": ["rms_norm(zero_centred=true)", "layer_norm(bias=false)"],
            },
        ],
        "norm": "rms_norm(weight=false)",
        "head": {"kind": "language_model", "transform": "gelu_tanh", "norm": "rms_norm", "scale": 0.5, "tied": False},
    },
    "recurrent, normed by batches": {
        "frontend": {"kind": "text", "positions": {"kind": "learned", "offset": 2}},
        "blocks": [
            {
                "branches": ["lstm(10)", "rnn", "attention(2, mask='causal & (strided(3) | fixed(4, summary=1))')"],
                "norm": "batch_norm",
            }
        ],
        "norm": "batch_norm",
    },
    "memory layer, tied": {"blocks": [{"branches": ["gru", "memory_layer"]}]},
    "relative vectors, best scores": {
        "blocks": [{"branches": ["attention(2, relative=shaw, top_k=3)", "mixture_of_experts(4, hidden=20)"]}],
    },
    "blocks of positions": {
        "blocks": [
            {"branches": ["attention(2, mask='causal & blocks(4, back=1)')", "feed_forward(20)"], "residual": "none"}
        ]
    },
}
SCRIPT = """
import sys
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    given = load_file(folder + "/given.safetensors")
    with torch.no_grad():
        said = model(given["ids"], labels=given["ids"])
        found = {"logits": said.logits, "loss": said.loss}
        for side in ("left", "right"):
            found[side] = model(given[side + "_ids"], attention_mask=given[side + "_mask"]).logits
        found["greedy"] = model.generate(given["ids"], attention_mask=torch.ones_like(given["ids"]), \
max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder + "/found.safetensors")
"""


def model(name: str) -> Transformer:
    described = {"width": 24, "num_layers": 2, "context_length": LENGTH, **SPECS[name]}
    described["frontend"] = {"kind": "text", "vocab_size": VOCAB, **described.get("frontend", {})}  # type: ignore[dict-item]
    built = build(Model.parse(described), 0).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, tensor in built.state_dict().items():
            if tensor.is_floating_point():
                drawn = torch.randn(tensor.shape, generator=generator) * 0.3
                tensor.copy_(drawn.abs() + 0.5 if "running_var" in key else drawn)
    return built


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(1, VOCAB, (rows, length), generator=torch.Generator().manual_seed(length))


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor, list[slice]]:
    """Two rows of 9 and 5 real ids, their mask, and where the real ones stand."""
    rows, mask = torch.zeros(2, 9, dtype=torch.long), torch.zeros(2, 9, dtype=torch.long)
    places = [slice(0, 9), slice(4, 9) if side == "left" else slice(0, 5)]
    for row, place in enumerate(places):
        rows[row, place], mask[row, place] = ids(2, 9)[row, : place.stop - place.start], 1
    return rows, mask, places


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each model, opened once by another process."""
    root = tmp_path_factory.mktemp("remote")
    folders = {name: root / f"model_{i}" for i, name in enumerate(SPECS)}
    for name, place in folders.items():
        save_with_code(model(name), place)
        given = {"ids": ids(2, 11)}
        for side in ("left", "right"):
            given[f"{side}_ids"], given[f"{side}_mask"], _ = padded(side)
        save_file(given, place / "given.safetensors")
    environment = {**os.environ, "HF_HOME": str(root / "home"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT.replace("NEW", str(NEW)), *map(str, folders.values())]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folders


@pytest.mark.parametrize("name", SPECS)
def test_logits_loss_and_greedy_words_are_the_same(name: str, opened: dict[str, Path]) -> None:
    ours, found = model(name), load_file(opened[name] / "found.safetensors")
    with torch.no_grad():
        logits = ours(ids(2, 11))[0]
        torch.testing.assert_close(found["logits"], logits, rtol=1e-5, atol=1e-5 * float(logits.abs().max()))
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids(2, 11)[:, 1:].flatten())
        torch.testing.assert_close(found["loss"], loss, rtol=1e-5, atol=1e-6)
        row = ids(2, 11)
        for _ in range(NEW):
            row = torch.cat((row, ours(row)[0][:, -1:].argmax(-1)), 1)
    assert torch.equal(found["greedy"], row)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", SPECS)
def test_padding_changes_nothing(name: str, side: str, opened: dict[str, Path]) -> None:
    found = load_file(opened[name] / "found.safetensors")[side]
    rows, _, places = padded(side)
    for row, place in enumerate(places):
        with torch.no_grad():
            alone = model(name)(rows[row, place][None])[0][0]
        torch.testing.assert_close(found[row, place], alone, rtol=1e-5, atol=1e-5 * float(alone.abs().max()))


def test_without_qkv_the_library_names_the_package(opened: dict[str, Path], tmp_path: Path) -> None:
    script = """
import sys
sys.modules["qkv"] = None  # importing it, or anything in it, fails
from transformers import AutoModelForCausalLM
AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
"""
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", "-c", script, str(opened["attention and GRU"])]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "qkv" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "fields",
    [
        {"blocks": [{"branches": ["attention(2, mask=full)"]}]},
        {"head": "classification(3)"},
        {"frontend": {"kind": "joined", "inputs": {"outline": "contour_points(points=3)"}}},
    ],
)
def test_other_models_are_refused_before_anything_is_written(fields: dict[str, object], tmp_path: Path) -> None:
    described = {"width": 16, "context_length": 8, **fields}
    described["frontend"] = {"kind": "text", "vocab_size": VOCAB, **described.get("frontend", {})}  # type: ignore[dict-item]
    with pytest.raises(UserError, match="for causal language models only, and this model is not one"):
        save_with_code(build(Model.parse(described), 0), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_says_that_no_family_is_this_model(qkv, run: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    changed = tmp_path / "gru"
    assert qkv("swap", run, "blocks.0.mixer=gru", "--heal", 0, "--out", changed).code == 0
    said = qkv("export", changed, "--out", tmp_path / "hf")
    assert said.code == 0, said.err
    assert "no published family has this structure, so the folder contains its own model code" in said.out
    assert {path.name for path in (tmp_path / "hf").iterdir()} >= {
        "modeling_qkv.py",
        "tokenizer.json",
        "model.safetensors",
    }
    assert (
        json.loads((tmp_path / "hf" / "config.json").read_text())["auto_map"]["AutoModelForCausalLM"]
        == "modeling_qkv.QkvForCausalLM"
    )
