"""Private memory mapping of a file: pages are read on first use, and writing to a mapped tensor never changes the file."""

from __future__ import annotations

import math
import mmap
import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.spec.errors import UserError

CAN_MAP = os.name == "posix" and sys.byteorder == "little"
"""False on Windows, where an open mapping blocks renaming the file, and on big-endian machines: files are little-endian."""


class MappedFile:
    """Mapping of a whole file; stays alive as long as any tensor in it."""

    def __init__(self, path: Path):
        self.path = path
        with path.open("rb") as file:
            self.handle = os.dup(file.fileno())
            self._as_mapped = self._stamp()
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._begin = torch.frombuffer(self._map, dtype=torch.uint8, count=1).data_ptr()
        self._end = self._begin + len(self._map)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            os.close(self.handle)

    def __reduce__(self) -> Any:
        raise TypeError(f"the mapping of {self.path} cannot be copied or sent to another process")

    def tensor(self, begin: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor | None:
        """View of the tensor that starts at byte ``begin``; None if it is empty or not aligned to its element size.

        Raises ``UserError`` if it would end past the end of the file.
        """
        count = math.prod(shape)
        if not count or (self._begin + begin) % dtype.itemsize:
            return None
        if begin + count * dtype.itemsize > len(self._map):
            raise UserError(f"{self.path} was cut short while it was read")
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=begin).view(*shape)

    def holds(self, tensor: Tensor) -> bool:
        """True if the storage of ``tensor`` lies in this mapping."""
        return tensor.device.type == "cpu" and self._begin <= tensor.data_ptr() < self._end

    def changed(self) -> bool:
        """True if the mapped file was modified or truncated since it was mapped.

        Replacing it by renaming another file onto its path does not count: the mapping keeps the old file.
        """
        return self._stamp() != self._as_mapped

    def _stamp(self) -> tuple[int, int, int, int]:
        found = os.fstat(self.handle)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class Watch:
    """Forward pre-hook: raise ``UserError`` if a file that the model's tensors are mapped from has changed."""

    def __init__(self, model: nn.Module | None = None, files: Iterable[MappedFile] = ()):
        self.model = weakref.ref(model) if model is not None else lambda: None
        self.files = tuple(files)

    def __call__(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        changed = next((file for file in self.files if file.changed()), None)
        model = self.model()
        if changed and model is not None and any(changed.holds(tensor) for tensor in tensors_of(model)):
            raise UserError(
                f"{changed.path} was changed while a model that is mapped from it was in use; load it again, or load it with copy=True "
                "(--copy), which reads it into memory"
            )

    def __deepcopy__(self, _: Any) -> Watch:
        return Watch()  # the tensors of a copy lie in memory of their own

    def __reduce__(self) -> Any:
        return Watch, ()


def tensors_of(model: nn.Module) -> list[Tensor]:
    """All parameters and buffers."""
    return [*model.parameters(), *model.buffers()]


def watch(model: nn.Module, entrances: Iterable[nn.Module], files: Iterable[MappedFile]) -> None:
    """Check before every forward pass that mapped files are unchanged. ``entrances``: modules of which each forward pass calls one."""
    tensors = tensors_of(model)
    used = [file for file in files if any(file.holds(tensor) for tensor in tensors)]
    if used:
        hook = Watch(model, used)
        for entrance in entrances:
            entrance.register_forward_pre_hook(hook)


def mapped(path: Path) -> MappedFile | None:
    """Map the file; None if this system or file system does not support it."""
    try:
        return MappedFile(path) if CAN_MAP else None
    except (OSError, ValueError):
        return None
