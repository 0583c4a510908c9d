"""GGUF files that llama.cpp itself quantises, in K and IQ kinds: the values of its blocks, and its logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.interop.gguf_models import VOCAB
from transformers import LlamaConfig, LlamaForCausalLM

import qkv
from qkv.interop.gguf.blocks import EXACT
from qkv.interop.gguf.peer import logits_of
from qkv.interop.gguf.write import save_gguf
from qkv.interop.load import load_published
from qkv.layers.linear.quantized import QuantizedLinear

gguf: Any = pytest.importorskip("gguf")
llama_cpp: Any = pytest.importorskip("llama_cpp")

IDS = torch.randint(0, VOCAB, (1, 16), generator=torch.Generator().manual_seed(4))
KINDS = {"Q2_K": 10, "Q3_K_M": 12, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "IQ4_XS": 30, "IQ4_NL": 25}
"""Mixtures of kinds by their numbers in llama.cpp."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in fp32 whose rows are blocks of 256 weights."""
    folder = tmp_path_factory.mktemp("plain")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=VOCAB, max_position_embeddings=64)
    torch.manual_seed(6)
    LlamaForCausalLM(config).save_pretrained(folder / "hf")
    save_gguf(load_published(folder / "hf").model, folder / "plain.gguf")
    return folder / "plain.gguf"


def quantised(plain: Path, file: Path, kind: int) -> Path:
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread = kind, 1
    assert llama_cpp.llama_model_quantize(str(plain).encode(), str(file).encode(), options) == 0
    return file


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_blocks_by_llama_cpp_have_its_values_and_its_logits(kind: str, plain: Path, tmp_path: Path) -> None:
    file = quantised(plain, tmp_path / "a.gguf", KINDS[kind])
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    wide, narrow = load_published(file, "fp32").model, qkv.load(file).model
    down = stored["blk.1.ffn_down.weight"]
    name = "blocks.1.branches.1.body.down"
    wanted = torch.from_numpy(np.array(gguf.dequantize(down.data, down.tensor_type))).reshape(256, 512)
    assert torch.equal(wide.get_parameter(f"{name}.weight"), wanted)
    layer = narrow.get_submodule(name)
    assert isinstance(layer, QuantizedLinear)
    bound = 0.0 if down.tensor_type.name in EXACT else 1e-2
    assert (layer.weight - wanted).norm() <= bound * wanted.norm()
    theirs = torch.from_numpy(logits_of(file, IDS[0].tolist()))
    for model in (wide, narrow):  # either side of kernels rounds inputs to 8 bits
        assert (model(IDS)[0][0] - theirs).abs().max() <= 0.05 * theirs.abs().max()
