"""Quantised stacks of experts: exact values, memory, and the experts that decoding reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tests.interop.cases.experts import case
from tests.interop.test_schemes import CASES
from torch import Tensor

import qkv
from qkv.interop.files.safetensors_file import Entry
from qkv.interop.load import load_published
from qkv.interop.mapping.levels import half_powers
from qkv.layers.linear import quantized
from qkv.layers.linear.quantized import QuantizedLinear
from qkv.models.edit.quantize import quantize
from qkv.models.transformer import Transformer
from qkv.ops.quantized import reference
from qkv.spec.models.quantization import Quantization
from qkv.system.errors import UserError

EXPERTS, CHOSEN = 4, 2
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN}
NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Numbers of e2m1 without a sign, by their bits."""


def mxfp4(outer: int, inner: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Tensors of a stack of experts by ending, and the stack (E, I, O) in float64, computed number by number."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (EXPERTS, outer, inner), generator=generator)
    exponents = torch.randint(118, 124, (EXPERTS, outer, inner // 32), generator=generator)
    powers = [[[2.0 ** (e - 127) for e in row] for row in matrix] for matrix in exponents.tolist()]
    values = [
        [
            [(-1) ** (code // 8) * NUMBERS[code % 8] * powers[e][o][i // 32] for i, code in enumerate(row)]
            for o, row in enumerate(matrix)
        ]
        for e, matrix in enumerate(codes.tolist())
    ]
    dense = torch.tensor(values, dtype=torch.float64).mT.contiguous()
    pairs = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return {"blocks": pairs.unflatten(-1, (-1, 16)).contiguous(), "scales": exponents.to(torch.uint8)}, dense


def gpt_oss(folder: Path) -> tuple[Path, Path]:
    """A folder in MXFP4, and one of the same weights in fp32."""
    made = case("gpt-oss", "GptOss", **SIZES, swiglu_limit=7.0, sliding_window=4)
    torch.manual_seed(3)
    plain, narrow = folder / "plain", folder / "narrow"
    for place in (plain, narrow):
        made.model(made.config).save_pretrained(place)
    tensors = load_file(plain / "model.safetensors")
    packed = dict(tensors)
    for seed, name in enumerate(name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))):
        _, inner, outer = tensors[name].shape
        parts, dense = mxfp4(outer, inner, seed)
        tensors[name] = dense.float()
        del packed[name]
        packed |= {f"{name}_{ending}": part for ending, part in parts.items()}
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    save_file(packed, narrow / "model.safetensors", {"format": "pt"})
    config = json.loads((narrow / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (narrow / "config.json").write_text(json.dumps(config))
    return plain, narrow


def near(narrow: Transformer, wanted: Tensor) -> None:
    """Kernels round x to 8 bits, so that a router may choose another expert where two have nearly equal scores."""
    error = (narrow(IDS)[0] - wanted).abs().amax(-1) / wanted.abs().max()
    assert (error < 0.03).float().mean() > 0.75


IDS = torch.randint(0, 40, (2, 11), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def test_mxfp4_experts_keep_every_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, folder = gpt_oss(tmp_path)
    theirs = hf.GptOssForCausalLM.from_pretrained(plain, attn_implementation="eager", dtype=torch.float32).eval()
    wide, narrow = load_published(folder, "fp32").model, qkv.load(folder).model
    wanted = theirs(IDS).logits
    torch.testing.assert_close(wide(IDS)[0], wanted, rtol=1e-4, atol=1e-5)
    exact = load_published(plain, "fp32").model
    assert all(torch.equal(weight, exact.state_dict()[name]) for name, weight in wide.state_dict().items())
    layers = {name: m for name, m in narrow.named_modules() if isinstance(m, QuantizedLinear)}
    assert len(layers) == len(narrow.spec.layers) * EXPERTS * 2
    for name, layer in layers.items():
        assert layer.matrix.bits == 4
        assert torch.equal(layer.weight, exact.get_submodule(name).weight)
    near(narrow, wanted)
    monkeypatch.setattr(quantized, "linear", reference.linear)
    torch.testing.assert_close(narrow(IDS)[0], wanted, rtol=1e-4, atol=1e-5)
    stored = sum(
        t.nbytes for n, t in load_file(folder / "model.safetensors").items() if n.endswith(("blocks", "scales"))
    )
    held = sum(b.nbytes for layer in layers.values() for b in layer.matrix.buffers())
    assert held <= 1.1 * stored


def test_mxfp4_reads_each_expert_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = gpt_oss(tmp_path)
    read = list[tuple[int, ...]]()
    fill = Entry.read_into

    def reading(entry: Entry, out: Tensor) -> None:
        read.append(entry.shape)
        fill(entry, out)

    monkeypatch.setattr(Entry, "read_into", reading)
    qkv.load(folder)
    assert not [shape for shape in read if len(shape) == 4]
    assert sum(len(shape) == 3 for shape in read) == 2 * EXPERTS * 2  # blocks of one expert (O, I / 32, 16), each once


def test_shared_exponents_are_powers_of_two_to_the_last() -> None:
    found = half_powers(torch.arange(256, dtype=torch.uint8)).double()
    assert found[:255].tolist() == [2.0 ** (e - 128) for e in range(255)]
    assert bool(found[255].isnan())


def test_exponents_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    _, folder = gpt_oss(tmp_path)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.mlp.experts.down_proj_scales"][1, 0, 0] = 255
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"'model.layers.0.mlp.experts.down_proj\[1\]' has weights that are not finite"):
        qkv.load(folder)


def mixtral(folder: Path, scheme: str) -> tuple[Path, Path]:
    """A folder whose experts a scheme of ``test_schemes`` stores, and one of the same weights in fp32."""
    settings, pack, _ = CASES[scheme]
    made = case("mixtral", "Mixtral", **{**SIZES, "hidden_size": 32, "intermediate_size": 64})
    torch.manual_seed(4)
    plain, narrow = folder / "plain", folder / "narrow"
    for place in (plain, narrow):
        made.model(made.config).save_pretrained(place)
    tensors = load_file(plain / "model.safetensors")
    packed = dict(tensors)
    for name in [name for name in tensors if ".experts." in name]:
        parts, dense = pack(*tensors[name].shape)
        tensors[name] = dense.float()
        del packed[name]
        packed |= {f"{name.removesuffix('.weight')}.{ending}": part for ending, part in parts.items()}
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    save_file(packed, narrow / "model.safetensors", {"format": "pt"})
    config = json.loads((narrow / "config.json").read_text())
    (narrow / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    return plain, narrow


@pytest.mark.parametrize("scheme", ["gptq", "awq", "int8", "nf4"])
@torch.no_grad()
def test_experts_of_every_scheme_stay_narrow(scheme: str, tmp_path: Path) -> None:
    plain, folder = mixtral(tmp_path, scheme)
    exact, narrow = load_published(plain, "fp32").model, qkv.load(folder).model
    layers = {name: m for name, m in narrow.named_modules() if isinstance(m, QuantizedLinear)}
    assert len(layers) == len(narrow.spec.layers) * EXPERTS * 2
    for name, layer in layers.items():
        weight = exact.get_submodule(name).weight
        if CASES[scheme][2]:
            torch.testing.assert_close(layer.weight, weight, rtol=1e-6, atol=0)
        else:
            assert (layer.weight - weight).norm() < 6e-3 * weight.norm()
    near(narrow, exact(IDS)[0])


@pytest.mark.parametrize("origin", ["mxfp4", "quantised here"])
@torch.no_grad()
def test_decoding_reads_the_chosen_experts_only(origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, folder = gpt_oss(tmp_path)
    if origin == "mxfp4":
        model = qkv.load(folder).model
    else:
        model = load_published(plain, "fp32").model
        quantize(model, Quantization.parse({"bits": 4}))
    experts = {
        m.matrix.stored.data_ptr() for n, m in model.named_modules() if ".experts." in n and hasattr(m, "matrix")
    }
    read, product = list[int](), quantized.linear

    def reading(x: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
        read.append(weight.stored.data_ptr())
        return product(x, weight, bias)

    monkeypatch.setattr(quantized, "linear", reading)
    state = model.init_state(1, capacity=20)
    _, state = model(IDS[:1, :5], state=state)
    read.clear()
    model(IDS[:1, 5:6], state=state)
    assert sum(one in experts for one in read) == len(model.spec.layers) * CHOSEN * 2
