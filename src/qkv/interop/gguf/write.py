"""Writing of a model as one GGUF file, the format of llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.interop.gguf.config import (
    FACTORS,
    check_kept,
    factors_of,
    known_in_gguf,
    metadata_of,
    names_of,
    own_keys,
)
from qkv.interop.mapping.gguf import GGUFLayout, Values, cut_of_change
from qkv.interop.mapping.names import split_slice
from qkv.interop.registry import families
from qkv.interop.save import Covering, covering, published_tensors
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError, nearest
from qkv.tokenizers.gguf.file import Header, StoredTensor, library
from qkv.tokenizers.gguf.write import metadata_of_tokenizer
from qkv.tokenizers.tokenizer import Tokenizer

TYPES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0", "f32": "F32", "f16": "F16"}
"""Name of a precision in options -> type of the matrices in GGUF."""
_OF_TORCH = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "BF16": 32}
_BLOCK = 32
_LARGEST = {"F16": torch.finfo(torch.float16).max}
_EXACT = ("position_embd.weight", "ffn_gate_inp.weight")
"""Matrices in 32 bits: positions, for which llama.cpp supports nothing else, and routers, as its converter does."""
_TABLES = ("token_embd.weight", "output.weight")


class GGUFExport(NamedTuple):
    """Result of an export: family, type of the matrices, and sentences on differences between llama.cpp and qkv."""

    family: str
    type: str
    notes: tuple[str, ...]


class _Tensor(NamedTuple):
    """Tensor of the file; with ``experts``, the stack of several."""

    name: str
    parts: Sequence[Tensor]
    type: str
    experts: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        one = tuple(self.parts[0].shape)
        return (len(self.parts), *one) if self.experts else one


def save_gguf(
    model: Transformer,
    file: Path,
    tokenizer: Tokenizer | None = None,
    dtype: str | None = None,
    family: str = "",
    ends: Sequence[int] = (),
) -> GGUFExport:
    """Write ``model`` as the GGUF file ``file``, which llama.cpp opens.

    dtype: type of the matrices, a key of ``TYPES``; default: the model's dtype. Vectors and position tables have 32
    bits;
        with Q4_0, the token table and the output matrix have Q8_0; with quantised types, matrices whose row length is
        not a multiple of 32 have F16.
    family: name of the published family to prefer.
    ends: ids of tokens that end a text, besides the tokenizer's.

    Raises ``UserError`` if llama.cpp has no architecture for the model, if the file would lose a setting, or if a
    weight is not finite.
    """
    kind = type_of(dtype, model)
    cover, layout = _covered(model, family)
    tensors = _tensors(model, cover, layout, kind)
    config = {**cover.config, "vocab_size": model.spec.vocab_size}
    factors = factors_of(config) if layout.factors else None
    values = metadata_of(layout, config) | own_keys(config) | {"general.file_type": _FILE_TYPES[kind]}
    shapes = {each.name: StoredTensor(each.type, each.shape, 0, 0) for each in tensors}
    check_kept(cover.family, config, Header(file, values, shapes), factors)
    _check_finite(tensors)
    words, note = metadata_of_tokenizer(tokenizer, model.spec.vocab_size or 0, ends)
    if factors is not None:
        tensors.append(_Tensor(FACTORS, [torch.from_numpy(factors)], "F32"))
    try:
        _write(file, {**values, **words}, tensors)
    except OSError as error:
        file.unlink(missing_ok=True)
        raise UserError(f"{file} cannot be written: {error.strerror or error}") from None
    odd = sum(each.type == "F16" for each in tensors) if kind.startswith("Q") else 0
    rows = f"{odd} matrices are in F16, because their row length is not a multiple of {_BLOCK}" if odd else ""
    return GGUFExport(cover.family.name, kind, tuple(filter(None, (note, rows, layout.note))))


def type_of(dtype: str | None, model: Transformer) -> str:
    """Return the matrices' GGUF type for a precision's name; default: the model's dtype. Raises ``UserError``."""
    if dtype is None:
        return _OF_TORCH.get(next(model.parameters()).dtype, "F32")
    if dtype not in TYPES:
        raise UserError(f"there is no precision {dtype!r} for GGUF files; {nearest(dtype, TYPES)}")
    return TYPES[dtype]


def _covered(model: Transformer, family: str) -> tuple[Covering, GGUFLayout]:
    """Return (published family of the model, its GGUF layout). Raises ``UserError`` if llama.cpp supports none.

    Several families may describe a model of no ``family``; one that llama.cpp has is preferred.
    """
    several = None if family else [each for each in families() if each.gguf]
    names, cover = known_in_gguf(), covering(model.spec, family, several) or covering(model.spec, family)
    if cover is None:
        raise UserError(f"llama.cpp does not support this model: none of the published families {names} covers it")
    layout = cover.family.gguf
    if layout is None:
        raise UserError(f"qkv writes GGUF for {names}; this model is {cover.family.name}; export it with --format hf")
    head = model.spec.head
    if not head.predicts_tokens or cover.family.architectures[layout.architecture].config(head) is None:
        raise UserError(
            f"llama.cpp generates text, and this {cover.family.name} has a head of the kind {head.kind!r}; "
            "export it with --format hf"
        )
    return cover, layout


def _tensors(model: Transformer, cover: Covering, layout: GGUFLayout, kind: str) -> list[_Tensor]:
    """Return the tensors of the file, converted to the form that llama.cpp stores."""
    family = cover.family.in_gguf
    published, names = published_tensors(model, family, layout.architecture), names_of(family, cover.config)
    parts, experts = dict[str, dict[int, Tensor]](), set[str]()
    for name, tensor in published.items():
        stored, expert = split_slice(names.get(name, name))
        parts.setdefault(stored, {})[expert or 0] = _changed(layout, name, tensor, cover.config)
        if expert is not None:
            experts.add(stored)
    return [
        _Tensor(name, [several[i] for i in sorted(several)], _type_of(name, several[0], kind), name in experts)
        for name, several in parts.items()
    ]


def _changed(layout: GGUFLayout, name: str, tensor: Tensor, config: Values) -> Tensor:
    change = layout.changed(name)
    return tensor if change is None else change.way.inward([tensor], cut_of_change(change, len(tensor), config))


def _type_of(name: str, tensor: Tensor, kind: str) -> str:
    if tensor.dim() < 2 or name.endswith(_EXACT):
        return "F32"
    if kind.startswith("Q") and tensor.shape[-1] % _BLOCK:
        return "F16"
    return "Q8_0" if kind == "Q4_0" and name in _TABLES else kind


def _check_finite(tensors: list[_Tensor]) -> None:
    """Raise ``UserError`` if a weight is not finite in the type of its tensor."""
    for each in tensors:
        largest = max(float(part.detach().abs().max()) for part in each.parts) if each.parts[0].numel() else 0.0
        if not largest <= _LARGEST.get(each.type, torch.finfo(torch.float32).max):
            raise UserError(f"{each.name} has weights that are not finite numbers of the type {each.type}")


def _write(file: Path, values: Mapping[str, Any], tensors: list[_Tensor]) -> None:
    """Write the metadata, then the tensors one by one, so that memory holds only one converted tensor."""
    gguf = library()
    writer = gguf.GGUFWriter(file, values["general.architecture"])
    try:
        for key, value in values.items():
            if key != "general.architecture":
                _add(writer, key, value)
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for each in tensors:
            kind = gguf.GGMLQuantizationType[each.type]
            shape, size = _stored_shape(gguf, each.shape, kind)
            writer.add_tensor_info(each.name, shape, np.dtype(np.uint8), size, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for data in _data(gguf, tensors):
            writer.write_tensor_data(data)
    finally:
        writer.close()


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _stored_shape(gguf: Any, shape: tuple[int, ...], kind: Any) -> tuple[tuple[int, ...], int]:
    """Return (shape in bytes, number of bytes) of a tensor in a type of GGUF."""
    shape_in_bytes = gguf.quant_shape_to_byte_shape(shape, kind)
    return shape_in_bytes, int(np.prod(shape_in_bytes, dtype=np.int64))


def _data(gguf: Any, tensors: list[_Tensor]) -> Iterator[np.ndarray]:
    for each in tensors:
        several = [part.detach().to("cpu", torch.float32) for part in each.parts]
        plain = torch.stack(several) if each.experts else several[0]
        yield gguf.quantize(plain.contiguous().numpy(), gguf.GGMLQuantizationType[each.type])
