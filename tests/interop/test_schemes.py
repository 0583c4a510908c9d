"""Quantised weights of published folders: each scheme packed by hand, number by number, and read back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.interop.gguf_models import VOCAB, model_of
from torch import Tensor

import qkv
from qkv.interop.load import load_published
from qkv.layers.linear.quantized import QuantizedLinear
from qkv.system.errors import UserError

IDS = torch.randint(0, VOCAB, (2, 12), generator=torch.Generator().manual_seed(3))
Packed = tuple[dict[str, Tensor], Tensor]
"""Tensors of a module by ending, and the matrix (O, I) in float64 that they stand for."""


def numbers(outer: int, inner: int, low: int, high: int) -> Tensor:
    return torch.randint(low, high, (outer, inner), generator=torch.Generator().manual_seed(outer + inner))


def scales(outer: int, groups: int) -> Tensor:
    return (0.01 + torch.rand(outer, groups, generator=torch.Generator().manual_seed(outer)) / 50).half()


def words(values: list[int], bits: int) -> int:
    """One int32 word, the first value in its lowest bits."""
    word = sum(value << bits * i for i, value in enumerate(values))
    return word - (1 << 32) if word >= 1 << 31 else word


def packed_rows(q: Tensor, bits: int) -> Tensor:
    """(R, C) -> (R, C · bits / 32)."""
    each = 32 // bits
    rows = [[words(row[i : i + each], bits) for i in range(0, len(row), each)] for row in q.tolist()]
    return torch.tensor(rows, dtype=torch.int32)


def matrix(q: Tensor, zero: Tensor, scale: Tensor, group: list[int]) -> Tensor:
    """w[o, i] = s[o, g] (q[o, i] - z[o, g]) with g the group of input i, in float64."""
    zeros, factors = zero.tolist(), scale.tolist()
    rows = [
        [factors[o][group[i]] * (value - zeros[o][group[i]]) for i, value in enumerate(row)]
        for o, row in enumerate(q.tolist())
    ]
    return torch.tensor(rows, dtype=torch.float64)


def gptq(
    outer: int, inner: int, symmetric: bool = True, ordered: bool = True, bits: int = 4, version: int = 1
) -> Packed:
    groups = inner // 32
    q, scale = numbers(outer, inner, 0, 1 << bits), scales(outer, groups)
    zero = torch.full((outer, groups), 1 << bits - 1) if symmetric else numbers(outer, groups, 1, 1 << bits)
    group = [i // 32 for i in range(inner)] if ordered else [i % groups for i in range(inner)]
    tensors = {
        "qweight": packed_rows(q, bits).t().contiguous(),
        "qzeros": packed_rows((zero - int(version == 1)).t(), bits),
        "scales": scale.t().contiguous(),
        "g_idx": torch.tensor(group, dtype=torch.int32),
    }
    return tensors, matrix(q, zero, scale, group)


def awq(outer: int, inner: int) -> Packed:
    q, zero, scale = numbers(outer, inner, 0, 16), numbers(outer, inner // 32, 0, 16), scales(outer, inner // 32)

    def columns(values: Tensor) -> Tensor:
        """(R, O) -> (R, O / 8): bits 4 k of a word hold output 0, 2, 4, 6, 1, 3, 5, 7 for k from 0 on."""
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        rows = [[words([row[i + j] for j in order], 4) for i in range(0, len(row), 8)] for row in values.tolist()]
        return torch.tensor(rows, dtype=torch.int32)

    tensors = {"qweight": columns(q.t()), "qzeros": columns(zero.t()), "scales": scale.t().contiguous()}
    return tensors, matrix(q, zero, scale, [i // 32 for i in range(inner)])


def packed_tensors(outer: int, inner: int, bits: int = 4, zeros: bool = False, ordered: bool = True) -> Packed:
    half, groups = 1 << bits - 1, inner // 32
    q, scale = numbers(outer, inner, -half, half), scales(outer, groups).bfloat16()
    zero = numbers(outer, groups, -half, half) if zeros else torch.zeros(outer, groups, dtype=torch.long)
    tensors = {
        "weight_packed": packed_rows(q + half, bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor([outer, inner]),
    }
    if zeros:
        tensors["weight_zero_point"] = packed_rows((zero + half).t(), bits).t().contiguous()
    group = [i // 32 for i in range(inner)] if ordered else [i % groups for i in range(inner)]
    if not ordered:
        tensors["weight_g_idx"] = torch.tensor(group, dtype=torch.int32)
    return tensors, matrix(q, zero, scale, group)


def rows_in_int8(outer: int, inner: int) -> Packed:
    q, scale = numbers(outer, inner, -127, 128), scales(outer, 1)
    zero = torch.zeros(outer, 1, dtype=torch.long)
    return {"weight": q.to(torch.int8), "weight_scale": scale}, matrix(q, zero, scale, [0] * inner)


def fp8(outer: int, inner: int) -> Packed:
    weight = torch.randn(outer, inner, generator=torch.Generator().manual_seed(outer)).to(torch.float8_e4m3fn)
    scale = scales(math.ceil(outer / 48), math.ceil(inner / 32)).float()
    factors = scale.tolist()
    rows = [
        [value * factors[o // 48][i // 32] for i, value in enumerate(row)]
        for o, row in enumerate(weight.to(torch.float64).tolist())
    ]
    return {"weight": weight, "weight_scale_inv": scale}, torch.tensor(rows, dtype=torch.float64)


def bnb8(outer: int, inner: int) -> Packed:
    q, most = numbers(outer, inner, -127, 128), scales(outer, 1)[:, 0].float() * 100
    found = torch.stack([row.double() * float(m) / 127 for row, m in zip(q, most, strict=True)])
    return {"weight": q.to(torch.int8), "SCB": most, "weight_format": torch.tensor(0, dtype=torch.uint8)}, found


def nf4(outer: int, inner: int, nested: bool = True) -> Packed:
    levels, index = torch.linspace(-1, 1, 16) ** 3, numbers(outer, inner, 0, 16).flatten()
    blocks = outer * inner // 64
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [outer, inner]}
    tensors = {
        "weight": (index[::2] << 4 | index[1::2]).to(torch.uint8)[:, None],
        "weight.quant_map": levels,
    }
    if nested:
        table, steps = torch.linspace(-1, 1, 256), numbers(1, blocks, 0, 256)[0]
        factor = scales(math.ceil(blocks / 256), 1)[:, 0].float()
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}
        absmax = [float(table[s]) * float(factor[i // 256]) + 0.5 for i, s in enumerate(steps.tolist())]
        tensors |= {"weight.nested_quant_map": table, "weight.nested_absmax": factor}
        tensors["weight.absmax"] = steps.to(torch.uint8)
    else:
        absmax = scales(blocks, 1)[:, 0].float().tolist()
        tensors["weight.absmax"] = torch.tensor(absmax)
    tensors["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    whole = [float(levels[i]) * absmax[n // 64] for n, i in enumerate(index.tolist())]
    return tensors, torch.tensor(whole, dtype=torch.float64).view(outer, inner)


def groups(**weights: Any) -> dict[str, Any]:
    return {"group_0": {"targets": ["Linear"], "weights": weights}}


COMPRESSED = {"quant_method": "compressed-tensors", "ignore": ["lm_head"]}
CASES: dict[str, tuple[dict[str, Any], Callable[[int, int], Packed], bool]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, gptq, True),
    "gptq-zeros": ({"quant_method": "gptq", "bits": 4}, lambda o, i: gptq(o, i, symmetric=False), True),
    "gptq-order": (
        {"quant_method": "gptq", "bits": 4, "desc_act": True},
        lambda o, i: gptq(o, i, ordered=False),
        False,
    ),
    "gptq-8": ({"quant_method": "gptq", "bits": 8}, lambda o, i: gptq(o, i, bits=8), True),
    "gptq-v2": (
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
        lambda o, i: gptq(o, i, symmetric=False, version=2),
        True,
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}, awq, True),
    "packed-4": ({**COMPRESSED, "format": "pack-quantized", "config_groups": groups(num_bits=4)}, packed_tensors, True),
    "packed-4-zeros": (
        {**COMPRESSED, "format": "pack-quantized", "config_groups": groups(num_bits=4, symmetric=False)},
        lambda o, i: packed_tensors(o, i, zeros=True),
        True,
    ),
    "packed-4-order": (
        {**COMPRESSED, "format": "pack-quantized", "config_groups": groups(num_bits=4, actorder="group")},
        lambda o, i: packed_tensors(o, i, zeros=True, ordered=False),
        False,
    ),
    "packed-8": (
        {**COMPRESSED, "format": "pack-quantized", "config_groups": groups(num_bits=8)},
        lambda o, i: packed_tensors(o, i, bits=8),
        True,
    ),
    "int8": ({**COMPRESSED, "format": "int-quantized", "config_groups": groups(num_bits=8)}, rows_in_int8, True),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [48, 32]}, fp8, False),
    "bnb8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, bnb8, False),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, lambda o, i: nf4(o, i, nested=False), False),
    "nf4-nested": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, nf4, False),
}
"""Name -> settings, function that packs a module, and whether qkv's narrow form holds the matrix without rounding."""


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """Function from a case to a folder in its form, and a folder of the same matrices in float64."""

    def write(case: str) -> tuple[Path, Path]:
        settings, pack, _ = CASES[case]
        plain, quantised = tmp_path / "plain", tmp_path / case
        for place in (plain, quantised):
            model_of("llama").save_pretrained(place)
        tensors = load_file(plain / "model.safetensors")
        narrow: dict[str, Tensor] = {}
        for name, tensor in list(tensors.items()):
            if "_proj." in name:
                parts, dense = pack(*tensor.shape)
                tensors[name] = dense
                narrow |= {f"{name.removesuffix('.weight')}.{ending}": part for ending, part in parts.items()}
            else:
                narrow[name] = tensor
        save_file(tensors, plain / "model.safetensors", {"format": "pt"})
        save_file(narrow, quantised / "model.safetensors", {"format": "pt"})
        config = json.loads((quantised / "config.json").read_text())
        (quantised / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
        return quantised, plain

    return write


@pytest.mark.parametrize("case", CASES)
def test_matrices_are_those_that_the_scheme_defines(case: str, folder: Callable[[str], tuple[Path, Path]]) -> None:
    quantised, plain = folder(case)
    wanted = load_published(plain, "fp32").model
    wide, narrow = load_published(quantised, "fp32").model, qkv.load(quantised).model
    with torch.no_grad():
        torch.testing.assert_close(wide(IDS)[0], wanted(IDS)[0], rtol=1e-5, atol=1e-5)
    linears = [(name, m) for name, m in narrow.named_modules() if isinstance(m, QuantizedLinear)]
    assert len(linears) == 2 * 4
    for name, layer in linears:
        exact = wanted.get_submodule(name).weight
        if CASES[case][2]:
            torch.testing.assert_close(layer.weight, exact, rtol=1e-6, atol=0)
        else:
            assert (layer.weight - exact).norm() < 6e-3 * exact.norm()
        if case.startswith("nf4"):
            assert layer.matrix.bits == 4


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"bits": 4}, "quantization_config: the key 'quant_method' is missing"),
        ({"quant_method": "gptqq"}, "quant_method is 'gptqq'"),
        ({"quant_method": "gptq", "bits": 3}, "bits is 3, which qkv does not support; allowed: 2, 4 and 8"),
        ({"quant_method": "awq", "version": "gemv"}, "version is 'gemv', which qkv does not support; allowed: gemm"),
        (
            {**COMPRESSED, "format": "marlin-24", "config_groups": groups(num_bits=4)},
            "format is 'marlin-24', which qkv does not support",
        ),
    ],
)
def test_other_settings_are_refused(
    settings: dict[str, Any], sentence: str, folder: Callable[[str], tuple[Path, Path]]
) -> None:
    quantised, _ = folder("gptq")
    file = quantised / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": settings}))
    with pytest.raises(UserError) as raised:
        load_published(quantised)
    assert sentence in str(raised.value)


def test_fp8_without_scales_is_refused(folder: Callable[[str], tuple[Path, Path]]) -> None:
    _, plain = folder("fp8")
    file = plain / "model.safetensors"
    tensors = {
        name: t.to(torch.float8_e4m3fn if t.dim() == 2 else torch.float32) for name, t in load_file(file).items()
    }
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UserError, match="is in fp8, but the config has no quantization_config"):
        load_published(plain)
