"""A safetensors file, read tensor by tensor into memory of its own, after its header was checked against the file.

    8 bytes n, little-endian │ n bytes of JSON: name -> {dtype, shape, data_offsets} │ the tensors' bytes

Nothing is mapped: pages of a mapped file would count as memory beside the weights until the system takes them back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qkv.spec.errors import UserError

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
}


class Entry(NamedTuple):
    """Where a tensor lies: the file, the first of its bytes there and what they are."""

    file: Path
    begin: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """How many there are in it."""
        return math.prod(self.shape)

    def read(self) -> Tensor:
        """The tensor, in memory that nothing else shares. Raises ``UserError`` if the file has become shorter."""
        tensor = torch.empty(self.shape, dtype=self.dtype)
        self.read_into(tensor)
        return tensor

    def read_into(self, out: Tensor) -> None:
        """Put the tensor into ``out``, of its shape; without a copy between where precision and order are the same. Raises ``UserError``."""
        if out.dtype != self.dtype or not out.is_contiguous():
            out.copy_(self.read())
        elif self.numbers:
            with self.file.open("rb", buffering=0) as file:
                file.seek(self.begin)
                self._fill(out.view(-1).view(torch.uint8).numpy().data, file)

    def _fill(self, buffer: memoryview, file: Any) -> None:
        # One call of the system reads at most 2 GB.
        while buffer:
            came = file.readinto(buffer)
            if not came:
                raise UserError(f"{self.file} was cut short while it was read")
            buffer = buffer[came:]


def entries(file: Path) -> dict[str, Entry]:
    """Every tensor of a file by name; nothing of it is read but the header. Raises ``UserError`` for any other file, one damaged or torn."""
    try:
        with safe_open(file, "pt"):  # the library checks lengths, offsets that overlap or leave gaps, and shapes
            pass
    except FileNotFoundError:
        raise UserError(f"{file} is missing") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} {what_else(file)} ({error})") from None
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header: Mapping[str, Any] = json.loads(opened.read(length))
    return dict(_entries(file, header, 8 + length))


def _entries(file: Path, header: Mapping[str, Any], start: int) -> Iterator[tuple[str, Entry]]:
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in DTYPES:
            raise UserError(f"{file}: {name!r} is stored as {entry['dtype']}, which qkv does not read; it reads {', '.join(DTYPES)}")
        yield name, Entry(file, start + entry["data_offsets"][0], DTYPES[entry["dtype"]], tuple(entry["shape"]))


def what_else(path: Path) -> str:
    """What a file that is refused as safetensors looks like, as the end of a sentence."""
    if path.is_dir():
        return "is a folder, not a safetensors file"
    with path.open("rb") as file:
        start = file.read(9)
    if start[:1] == b"\x80" or start[:4] == b"PK\x03\x04":
        return "is a pickle under the name of a safetensors file; it could run code, so it was not loaded"
    return "is empty" if not start else "is cut short or not a safetensors file"
