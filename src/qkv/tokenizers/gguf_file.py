"""Header of a GGUF file, the format of llama.cpp: metadata, and the place of each tensor. Read by the library gguf."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from qkv.spec.errors import UserError

SUFFIX = ".gguf"


class StoredTensor(NamedTuple):
    """Tensor of a GGUF file: name of its type ("F32", "Q8_0", …), shape in torch's order, first byte, number of
    bytes.
    """

    type: str
    shape: tuple[int, ...]
    begin: int
    size: int


class Header(NamedTuple):
    """Contents of a GGUF file but for the values of its tensors. ``values``: metadata by key."""

    file: Path
    values: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


def is_gguf(path: Path) -> bool:
    """True if ``path`` is a file with the suffix of GGUF."""
    return path.suffix == SUFFIX and path.is_file()


def library() -> Any:
    """The library gguf. Raises ``UserError`` if it is not installed."""
    try:
        import gguf
    except ImportError:
        raise UserError("files of GGUF need the package gguf: pip install 'qkv[gguf]'") from None
    return gguf


def header(file: Path) -> Header:
    """Read the header of a GGUF file. Raises ``UserError`` if it is cut short, of another format, or big-endian."""
    try:
        stamp = file.stat()
        return _header(file, stamp.st_size, stamp.st_mtime_ns)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None


@functools.lru_cache(maxsize=1)
def _header(file: Path, size: int, _modified: int) -> Header:
    gguf = library()
    try:
        found = gguf.GGUFReader(file)
        values = {name: field.contents() for name, field in found.fields.items() if not name.startswith("GGUF.")}
        tensors = {each.name: _stored(each) for each in found.tensors}
        order = found.byte_order
    except OSError:
        raise
    except Exception as error:  # the library raises whatever numpy meets in a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{file} is cut short or not a GGUF file ({reason[:120]})") from None
    if order != "I":
        raise UserError(f"{file} is a GGUF file of the other byte order than this machine's")
    past = next((name for name, each in tensors.items() if each.begin + each.size > size), None)
    if past is not None:
        raise UserError(f"{file} is cut short: the tensor {past!r} ends after its last byte")
    return Header(file, values, tensors)


def _stored(tensor: Any) -> StoredTensor:
    shape = tuple(int(size) for size in reversed(tensor.shape.tolist()))
    return StoredTensor(tensor.tensor_type.name, shape, int(tensor.data_offset), int(tensor.n_bytes))
