"""Reading of a GGUF file as a published checkpoint: values of ``config.json``, and tensors by published name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.interop.files.folder import Stored
from qkv.interop.files.mapped import MappedFile, mapped
from qkv.interop.files.safetensors_file import DTYPES, Entry
from qkv.interop.files.slices import with_slices
from qkv.interop.gguf.blocks import read_blocks
from qkv.interop.gguf.config import FACTORS, layout_of, names_of, values_of
from qkv.interop.mapping.conversions import Cut, Way
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.gguf import Values, cut_of_change
from qkv.interop.mapping.narrow import NarrowWeights, convert_outward, narrow_of, round_weights
from qkv.interop.registry import families_by_type
from qkv.system.errors import UserError
from qkv.tokenizers.gguf.file import Header, StoredTensor, header, library


class BlockTensor(NamedTuple):
    """Block-quantised tensor of a GGUF file, which is dequantised to fp32 when it is read."""

    file: Path
    stored: StoredTensor

    dtype = torch.float32

    @property
    def form(self) -> str:
        """Name of the block format of the tensor in the file, such as "Q4_1"."""
        return self.stored.type

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.stored.shape

    @property
    def numbers(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.stored.shape)

    def read(self) -> Tensor:
        """Read the tensor in fp32. Raises ``UserError`` if the file was truncated."""
        gguf, raw = library(), self._raw()
        kind = gguf.GGMLQuantizationType[self.stored.type]
        try:
            array = gguf.dequantize(raw.reshape(gguf.quant_shape_to_byte_shape(self.shape, kind)), kind)
        except NotImplementedError:
            raise UserError(
                f"{self.file} has tensors of the type {self.stored.type}, which qkv does not read"
            ) from None
        return torch.from_numpy(np.ascontiguousarray(array, np.float32).reshape(self.shape))

    def _raw(self) -> np.ndarray:
        raw = np.fromfile(self.file, np.uint8, self.stored.size, offset=self.stored.begin)
        if raw.size < self.stored.size:
            raise UserError(f"{self.file} was truncated while it was read")
        return raw

    def read_into(self, out: Tensor) -> None:
        """Read the tensor into ``out``, of the same shape."""
        out.copy_(self.read())

    def at(self, index: int) -> BlockTensor:
        """Return matrix ``index`` of a stack, such as that of one expert, without reading it."""
        size = self.stored.size // self.shape[0]
        begin = self.stored.begin + index * size
        return self._replace(stored=StoredTensor(self.stored.type, self.shape[1:], begin, size))

    def narrow(self) -> NarrowWeights:
        """Read the matrix in 8 or 4 bits. Raises ``UserError`` if the file was truncated."""
        matrix = read_blocks(self.stored.type, torch.from_numpy(self._raw()), self.shape)
        return round_weights(self.read()) if matrix is None else matrix


class Changed(NamedTuple):
    """Tensor that llama.cpp stores in another form than published checkpoints do; it is converted when it is read."""

    stored: Stored
    way: Way
    cut: Cut

    @property
    def form(self) -> str:
        """Name of the block format of the tensor in the file; "" if it is not quantised."""
        return getattr(self.stored, "form", "")

    @property
    def dtype(self) -> torch.dtype:
        """torch dtype in which the tensor is read."""
        return self.stored.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the published tensor."""
        return tuple(self._published(torch.empty(self.stored.shape, device="meta")).shape)

    @property
    def numbers(self) -> int:
        """Number of elements of the tensor."""
        return self.stored.numbers

    def read(self) -> Tensor:
        """Read the tensor in its published form."""
        return self._published(self.stored.read())

    def read_into(self, out: Tensor) -> None:
        """Read the tensor in its published form into ``out``."""
        out.copy_(self.read())

    def narrow(self) -> NarrowWeights | None:
        """Read the matrix in its published form in 8 or 4 bits; return None if it is not stored in such a format."""
        matrix = narrow_of(self.stored)
        return None if matrix is None else convert_outward(self.way, matrix, self.cut)

    def _published(self, tensor: Tensor) -> Tensor:
        return self.way.outward(tensor, self.cut)[0]


def gguf_values(file: Path) -> dict[str, Any]:
    """Read the ``config.json`` values of the model in a GGUF file. Raises ``UserError``."""
    head = header(file)
    factors = head.tensors.get(FACTORS)
    return values_of(head, None if factors is None else _entry(head, factors, None).read().numpy())


def gguf_names(values: Values) -> dict[str, str]:
    """Return the name in GGUF of each tensor of the model, by published name. ``values``: result of ``gguf_values``."""
    return names_of(_family(values), values)


def _family(values: Values) -> Family:
    return families_by_type()[values["model_type"]].in_gguf


def gguf_tensors(file: Path, values: Values, copy: bool = True) -> dict[str, Stored]:
    """Return the tensors of a GGUF file by published name, without reading them.

    ``values``: result of ``gguf_values``; ``copy`` False: memory-map the file. Tensors that the family has no published
    name for keep their GGUF name. Raises ``UserError``.
    """
    head, layout = header(file), layout_of(_family(values))
    names = {stored: published for published, stored in gguf_names(values).items()}
    source = None if copy else mapped(file)
    entries = {name: _entry(head, stored, source) for name, stored in head.tensors.items() if name != FACTORS}
    tensors = dict[str, Stored]()
    for name, entry in with_slices(entries, names).items():
        published = names.get(name, name)
        change = layout.changed(published)
        way = None if change is None else Changed(entry, change.way, cut_of_change(change, entry.shape[0], values))
        tensors[published] = way or entry
    return tensors


def _entry(header: Header, stored: StoredTensor, source: MappedFile | None) -> Stored:
    if stored.type in DTYPES:
        return Entry(header.file, stored.begin, DTYPES[stored.type], stored.shape, source)
    return BlockTensor(header.file, stored)
