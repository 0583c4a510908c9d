"""Reading and memory-mapping of a safetensors file tensor by tensor, after its header is checked against the file.

    8 bytes n, little-endian │ n bytes of JSON: name -> {dtype, shape, data_offsets} │ the tensors' bytes

A tensor of the model is mapped if it is a view of a stored tensor, or of several that can be mapped next to each other.
Other tensors, for example those that are cast, are read from the file in pieces and not through the mapping, because
pages that are touched in the mapping would take memory in addition to the weights.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qkv.interop.files.mapped import MappedFile, mapped
from qkv.system.errors import UserError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_PIECE = 4 << 20
"""Number of bytes to read at once when elements are cast or reordered."""


class Entry(NamedTuple):
    """Tensor in a safetensors file: file, offset of its first byte, dtype and shape.

    ``source``: the mapping of the file, or None.
    """

    file: Path
    begin: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    source: MappedFile | None = None

    @property
    def numbers(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    def read(self) -> Tensor:
        """Read the tensor into new memory. Raises ``UserError`` if the file was truncated."""
        tensor = torch.empty(self.shape, dtype=self.dtype)
        self.read_into(tensor)
        return tensor

    def read_into(self, out: Tensor) -> None:
        """Read the tensor into ``out``, of the same shape, in pieces that fit the caches if dtype or layout differ.

        Raises ``UserError`` if the file was truncated.
        """
        if not self.numbers:
            return
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.begin)
            if out.dtype == self.dtype and out.is_contiguous():
                self._fill(out, file)
                return
            out = out if out.dim() else out[None]
            rows = max(1, _PIECE * len(out) // (self.numbers * self.dtype.itemsize))
            piece = torch.empty((min(rows, len(out)), *out.shape[1:]), dtype=self.dtype)
            for begin in range(0, len(out), rows):
                part = out[begin : begin + rows]
                self._fill(piece[: len(part)], file)
                part.copy_(piece[: len(part)])

    def _fill(self, out: Tensor, file: Any) -> None:
        content = out.view(-1).view(torch.uint8).numpy()
        buffer = content.data
        # One system call reads at most 2 GB.
        while buffer:
            came = file.readinto(buffer)
            if not came:
                raise UserError(f"{self.file} was truncated while it was read")
            buffer = buffer[came:]
        if sys.byteorder == "big" and self.dtype.itemsize > 1:
            content.view(f"u{self.dtype.itemsize}").byteswap(inplace=True)


def in_place(parts: Sequence[Entry], shape: Sequence[int]) -> Tensor | None:
    """Return the concatenation of the stored tensors ``parts`` as one mapped tensor of ``shape``, without a copy.

    Return None if that needs a copy, or if the file is not mapped.
    """
    first = parts[0]
    if first.source is None or any(part.source is not first.source or part.dtype != first.dtype for part in parts):
        return None
    sizes = [part.numbers * part.dtype.itemsize for part in parts]
    if all(part.begin + size == after.begin for part, size, after in zip(parts, sizes, parts[1:], strict=False)):
        return first.source.tensor(first.begin, first.dtype, shape)
    return first.source.joined(
        [(part.begin, size) for part, size in zip(parts, sizes, strict=True)], first.dtype, shape
    )


def entries(file: Path, copy: bool = True) -> dict[str, Entry]:
    """Return the tensors of a safetensors file by name; only the header is read.

    ``copy`` False: memory-map the file if the system supports it. Raises ``UserError`` for a file that is damaged,
    truncated or of another format.
    """
    source = None if copy else mapped(file)
    try:
        with safe_open(file, "pt"):  # the library checks lengths, shapes, and offsets for overlaps and gaps
            pass
    except FileNotFoundError:
        raise UserError(f"{file} is missing") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} {what_else(file)} ({error})") from None
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header: Mapping[str, Any] = json.loads(opened.read(length))
    return dict(_entries(file, header, 8 + length, source))


def _entries(
    file: Path, header: Mapping[str, Any], start: int, source: MappedFile | None
) -> Iterator[tuple[str, Entry]]:
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in DTYPES:
            raise UserError(
                f"{file}: {name!r} is stored as {entry['dtype']}, which qkv does not read; it reads {', '.join(DTYPES)}"
            )
        yield name, Entry(file, start + entry["data_offsets"][0], DTYPES[entry["dtype"]], tuple(entry["shape"]), source)


def what_else(path: Path) -> str:
    """Describe the likely actual format of a file that is not safetensors (pickle, empty, …), as a predicate."""
    if path.is_dir():
        return "is a folder, not a safetensors file"
    with path.open("rb") as file:
        start = file.read(9)
    # The length of a safetensors header can begin with the same byte as a pickle; the header follows as JSON.
    if (start[:1] == b"\x80" and start[8:] != b"{") or start[:4] == b"PK\x03\x04":
        return "is a pickle under the name of a safetensors file; it could run code, so it was not loaded"
    return "is empty" if not start else "is truncated or not a safetensors file"
