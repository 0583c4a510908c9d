"""Read the header of a GGUF file, the format of llama.cpp: metadata, and the position of each tensor."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from qkv.system.errors import UserError

SUFFIX = ".gguf"


class StoredTensor(NamedTuple):
    """Tensor of a GGUF file: name of its type ("F32", "Q8_0", …), shape in torch's order, offset of its first byte, and
    number of bytes.
    """

    type: str
    shape: tuple[int, ...]
    begin: int
    size: int


class Header(NamedTuple):
    """Contents of a GGUF file except for the tensor data. ``values``: metadata by key."""

    file: Path
    values: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


def is_gguf(path: Path) -> bool:
    """Return True if ``path`` is a file with the suffix of GGUF."""
    return path.suffix == SUFFIX and path.is_file()


def library() -> Any:
    """Import and return the library gguf. Raises ``UserError`` if it is not installed."""
    try:
        import gguf
    except ImportError:
        raise UserError("GGUF files need the package gguf: pip install 'qkv[gguf]'") from None
    return gguf


def header(file: Path) -> Header:
    """Read the header of a GGUF file.

    Raises ``UserError`` if the file is truncated, has another format, or has a byte order other than this machine's.
    """
    try:
        stamp = file.stat()
        return _header(file, stamp.st_size, stamp.st_mtime_ns)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None


@functools.lru_cache(maxsize=1)
def _header(file: Path, size: int, _modified: int) -> Header:
    with file.open("rb") as opened:
        try:
            values, tensors = _HeaderReader(opened, size).read()
        except UserError:
            raise
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file} is cut short or not a GGUF file ({str(error)[:120]})") from None
    past = next((name for name, each in tensors.items() if each.begin + each.size > size), None)
    if past is not None:
        raise UserError(f"{file} is cut short: it ends before the last byte of the tensor {past!r}")
    return Header(file, values, tensors)


_T = TypeVar("_T")


def _by_name(pairs: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Build a dictionary from ``pairs``. Raises ``ValueError`` if a name is repeated."""
    rows = dict[str, _T]()
    for name, value in pairs:
        if name in rows:
            raise ValueError(f"{name!r} is repeated")
        rows[name] = value
    return rows


class _HeaderReader:
    """Reader of the header of an open file of ``size`` bytes.

        "GGUF" │ version u32 │ number of tensors u64 │ number of metadata entries u64
        metadata: key │ type u32 │ value                    string: number of bytes u64 │ UTF-8
        tensors:  name │ number of dimensions u32 │ sizes u64, fastest-varying first │ type u32 │ offset u64
        padding to a multiple of ``general.alignment``; tensor offsets count from its end

    The reader of the library gguf is slow, because it makes three NumPy arrays of each string: it takes 5.4 s for the
    header of a 135M model with 49,000 tokens. Methods raise ``ValueError``. Source: "GGUF" (specification of the
    format, ggml, 2023).
    """

    def __init__(self, file: BinaryIO, size: int):
        self.file = file
        self.left = size

    def read(self) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        """Read the header; return (metadata by key, tensors by name)."""
        if self._bytes(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version = self._number(_UINT32)
        if version not in _VERSIONS:
            if version & 0xFFFF == 0:
                raise ValueError("its byte order differs from the byte order of this machine")
            raise ValueError(f"its version is {version}; qkv reads {' and '.join(map(str, _VERSIONS))}")
        num_tensors, num_values = self._number(_UINT64), self._number(_UINT64)
        values = _by_name((self._string(), self._value(self._number(_UINT32))) for _ in range(num_values))
        described = _by_name((self._string(), self._tensor()) for _ in range(num_tensors))
        alignment = values.get("general.alignment", library().GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment is {alignment!r}, not a power of two")
        begin = -(-self.file.tell() // alignment) * alignment
        return values, {name: each._replace(begin=begin + each.begin) for name, each in described.items()}

    def _bytes(self, count: int) -> bytes:
        if count > self.left:
            raise ValueError("it ends inside of its header")
        self.left -= count
        return self.file.read(count)

    def _number(self, kind: struct.Struct) -> int:
        return kind.unpack(self._bytes(kind.size))[0]

    def _string(self) -> str:
        return self._bytes(self._number(_UINT64)).decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            kind, count = self._number(_UINT32), self._number(_UINT64)
            if kind in (_STRING, _ARRAY):
                return [self._value(kind) for _ in range(count)]
            return self._numbers(kind, count)
        return self._numbers(kind, 1)[0]

    def _numbers(self, kind: int, count: int) -> list[Any]:
        if kind not in _NUMBERS:
            raise ValueError(f"a value has the unknown type {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self._bytes(count * dtype.itemsize), dtype).tolist()

    def _tensor(self) -> StoredTensor:
        gguf = library()
        shape = tuple(reversed(self._numbers(_NUMBER_OF_SIZE, self._number(_UINT32))))
        kind = gguf.GGMLQuantizationType(self._number(_UINT32))
        block, nbytes = gguf.GGML_QUANT_SIZES[kind]
        return StoredTensor(kind.name, shape, self._number(_UINT64), math.prod(shape) // block * nbytes)


_VERSIONS = (2, 3)
_UINT32, _UINT64 = struct.Struct("=I"), struct.Struct("=Q")
_STRING, _ARRAY, _NUMBER_OF_SIZE = 8, 9, 10
_NUMBERS = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8", 12: "f8"}
"""NumPy dtype of each numeric type code of a metadata value."""
