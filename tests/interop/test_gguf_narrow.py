"""Block-quantised GGUF files whose weights stay in 8 and 4 bits: exact values, memory, and the doors that use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.interop.gguf_models import VOCAB, model_of

import qkv
from qkv.interop.gguf.blocks import EXACT
from qkv.interop.gguf.grids import GRIDS
from qkv.interop.gguf.read import BlockTensor
from qkv.interop.gguf.write import save_gguf
from qkv.interop.load import load_published
from qkv.layers.linear.quantized import QuantizedLinear, QuantizedTable
from qkv.models.transformer import Transformer
from qkv.ops.quantized import reference
from qkv.runs.storage.load import load_stored
from qkv.system.errors import UserError
from qkv.tokenizers.gguf.file import StoredTensor

gguf = pytest.importorskip("gguf")

IDS = torch.randint(0, VOCAB, (2, 12), generator=torch.Generator().manual_seed(3))
SCALES = dict.fromkeys(("Q4_K", "Q5_K", "IQ4_XS", *sorted(GRIDS.keys() - set(EXACT))), 5e-4)
ROUNDED = {**SCALES, **dict.fromkeys(("Q2_K", "Q3_K", "Q6_K", "IQ2_XS", "IQ2_S"), 1e-2)}
"""Kinds that are not stored as they are -> bound of |w' - w| / |w| over a matrix."""
FACTORS = {"Q2_K": 80, "Q3_K": 108, "Q4_K": 0, "Q5_K": 0, "Q6_K": 208, "TQ1_0": 52, "TQ2_0": 64}
"""First byte of a block's factors in fp16, if it is not 0."""


def random_blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Bytes of a matrix of a kind that the library gguf only reads: random, with scales of a sensible size."""
    generator = np.random.default_rng(7)
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = generator.integers(0, 256, (rows * columns // weights, size), np.uint8)
    first, count = FACTORS.get(kind, 0), 4 if kind in ("Q2_K", "Q4_K", "Q5_K") else 2
    factors = (generator.random((len(raw), 2)) / 100).astype(np.float16).view(np.uint8)
    raw[:, first : first + count] = factors[:, :count]
    if kind == "Q6_K":
        raw[:, 192:208] = generator.integers(40, 60, (len(raw), 16), np.uint8)
    if kind == "MXFP4":
        raw[:, 0] = np.concatenate(([0, 1, 2], generator.integers(3, 200, len(raw) - 3)))
    return raw.reshape(rows, -1)


QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


@pytest.mark.parametrize("kind", [*EXACT, *ROUNDED])
def test_blocks_have_the_values_that_the_library_gguf_reads(kind: str, tmp_path: Path) -> None:
    number, weight = gguf.GGMLQuantizationType[kind], np.random.default_rng(5).standard_normal((48, 512), np.float32)
    raw = gguf.quantize(weight, number) if kind in QUANTISED else random_blocks(kind, 48, 512)
    wanted = torch.from_numpy(gguf.dequantize(raw, number))
    (tmp_path / "raw").write_bytes(raw.tobytes())
    found = BlockTensor(tmp_path / "raw", StoredTensor(kind, (48, 512), 0, raw.nbytes)).narrow()
    values = reference.unpack(found.packed())
    assert torch.equal(found.dense(), values)
    assert found.bits == (4 if kind.startswith(("Q4", "MXFP4", "IQ4")) or kind in GRIDS else 8)
    if kind in EXACT:
        assert torch.equal(values, wanted)
    else:
        assert (values - wanted).norm() <= ROUNDED[kind] * wanted.norm()
    rows = torch.tensor([40, 0, 17])
    assert torch.equal(reference.unpack(found.packed(), rows), values[rows])


def llama(folder: Path, kinds: dict[str, str], name: str = "llama") -> Path:
    """GGUF file of a small model whose matrices have the kind of the first key that their name contains."""
    model_of(name).save_pretrained(folder / name)
    plain, file = folder / "plain.gguf", folder / "narrow.gguf"
    save_gguf(load_published(folder / name).model, plain)
    old = gguf.GGUFReader(plain)
    writer = gguf.GGUFWriter(file, old.fields["general.architecture"].contents())
    for key, field in old.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            many = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if many else None)
    for tensor in old.tensors:
        data = np.array(tensor.data).reshape(tensor.shape[::-1])
        kind = next((kinds[key] for key in kinds if key in tensor.name), None) if data.ndim == 2 else None
        number = None if kind is None else gguf.GGMLQuantizationType[kind]
        writer.add_tensor(tensor.name, data if number is None else gguf.quantize(data, number), raw_dtype=number)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return file


def matrices(model: Transformer) -> dict[str, Any]:
    return {name: m for name, m in model.named_modules() if isinstance(m, (QuantizedLinear, QuantizedTable))}


@pytest.mark.parametrize(
    "kinds",
    [
        {"": "Q4_0"},
        {"token_embd": "Q8_0", "": "Q4_1"},
        {"": "Q5_1"},
        {"attn_q": "Q4_1", "attn_k": "Q4_0", "attn_v": "Q8_0", "ffn_gate": "Q5_0", "ffn_up": "Q4_1", "": "Q5_1"},
        {"": "Q4_1", "attn_k": "Q8_0"},
        {"": "MXFP4"},
        {"attn_v": "Q8_0", "": "MXFP4"},
    ],
    ids=["one", "as published", "fifth bit", "each another", "table in four bits", "levels", "levels and numbers"],
)
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_weights_keep_their_values_and_their_size(kinds: dict[str, str], name: str, tmp_path: Path) -> None:
    file = llama(tmp_path, kinds, name)
    narrow, wide = load_published(file, narrow=True).model, load_published(file).model
    assert not matrices(wide)
    linears = {key: m for key, m in matrices(narrow).items() if isinstance(m, QuantizedLinear)}
    assert len(linears) == 2 * 4  # of each block: joined q, k and v; output; joined gate and up; down
    for key, layer in linears.items():
        assert torch.equal(layer.weight, wide.get_submodule(key).weight)
    table: Any = narrow.frontend.table
    assert torch.equal(reference.unpack(table.packed), wide.get_parameter("frontend.table"))
    with torch.no_grad():
        found, wanted = narrow(IDS)[0], wide(IDS)[0]
    assert (found - wanted).abs().max() <= 0.03 * wanted.abs().max()  # x is rounded to 8 bits
    stored = sum(t.nbytes for t in gguf.GGUFReader(file).tensors for t in [t.data])
    held = sum({b.data_ptr(): b.nbytes for b in (*narrow.buffers(), *narrow.parameters())}.values())
    # Five bits, and parts of several kinds that are joined, take 8 bits.
    assert held <= (1.7 if "attn_v" in kinds or "Q5_1" in kinds.values() else 1.3) * stored


@torch.no_grad()
def test_levels_decode_as_they_read(tmp_path: Path) -> None:
    """One native call per token, from a token table of levels on."""
    narrow = load_published(llama(tmp_path, {"": "MXFP4"}), narrow=True).model
    state = narrow.init_state(2, capacity=IDS.shape[1])
    for column in IDS.t().tolist():
        logits, state = narrow.decode([[token] for token in column], state)
    wanted = narrow(IDS)[0][:, -1]
    assert (logits - wanted).abs().max() <= 0.02 * wanted.abs().max()  # x is rounded to 8 bits, perhaps up or down


def test_a_file_is_narrow_where_it_is_used_and_wide_where_it_is_changed(tmp_path: Path) -> None:
    file = llama(tmp_path, {"": "Q4_1"})
    assert matrices(load_published(file, narrow=True).model).keys() == matrices(qkv.load(file).model).keys()
    assert not matrices(load_stored(file).model)
    published = load_published(file)
    assert published.quantization.startswith(f"{published.forms['Q4_1']} as Q4_1; 'generate'")
    assert not matrices(qkv.load(file, dtype="fp32").model)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    file = llama(tmp_path, {"ffn_down": "Q4_0"})
    tensor = next(t for t in gguf.GGUFReader(file).tensors if "ffn_down" in t.name)
    data = bytearray(file.read_bytes())
    data[tensor.data_offset : tensor.data_offset + 2] = np.array([np.inf], np.float16).tobytes()
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"tensor 'blk\.\d\.ffn_down\.weight' has weights that are not finite numbers"):
        qkv.load(file)
