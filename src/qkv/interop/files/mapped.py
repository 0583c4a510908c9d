"""Private memory mapping of a file: pages are read on first use, and a write to a mapped tensor never changes the file.

Tensors that the model concatenates, such as q, k and v, may be separate in the file; they are mapped next to each
other:

    file    │ k │ o │ q │ v │        memory    │ q │ k │ v │

A page that contains the end of one tensor and the start of the next is copied.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.frontends.frontend import Frontend
    from qkv.models.transformer import Transformer

CAN_MAP = os.name == "posix" and sys.byteorder == "little"
"""True if files can be mapped: not on Windows, where an open mapping prevents renaming of the file, nor on big-endian
machines, because files are little-endian.
"""
CAN_JOIN = sys.platform == "linux" and sys.maxsize > 1 << 32
"""True if parts of a file can be mapped to given addresses; ``_map_at`` uses Linux's 64-bit signature of ``mmap``."""
PAGE = mmap.ALLOCATIONGRANULARITY
_MAP_FIXED = 0x10


class MappedFile:
    """Memory mapping of a whole file. It exists until ``release`` is called, and then as long as a tensor in it
    exists.
    """

    def __init__(self, path: Path):
        self.path = path
        with path.open("rb") as file:
            self.handle = os.dup(file.fileno())
            # The finaliser refers to os.close directly; __del__ would look it up while the interpreter shuts down.
            weakref.finalize(self, os.close, self.handle).atexit = False
            self._as_mapped = self._stamp()
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._map: mmap.mmap | None = whole
        self._length, self._begin = len(whole), torch.frombuffer(whole, dtype=torch.uint8, count=1).data_ptr()
        self._regions = [(weakref.ref(whole), self._begin)]

    def __reduce__(self) -> Any:
        raise TypeError(f"the mapping of {self.path} cannot be copied or sent to another process")

    def tensor(self, begin: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor | None:
        """Return a tensor that is a view of the file from byte ``begin``.

        Return None if the tensor is empty or not aligned to its element size. Raises ``UserError`` if it would end past
        the end of the file.
        """
        count = math.prod(shape)
        if not count or (self._begin + begin) % dtype.itemsize:
            return None
        if begin + count * dtype.itemsize > self._length:
            raise self._cut_short()
        assert self._map is not None, "no tensor is made after release()"
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=begin).view(tuple(shape))

    def joined(self, pieces: Sequence[tuple[int, int]], dtype: torch.dtype, shape: Sequence[int]) -> Tensor | None:
        """Return the concatenation of ``pieces`` of the file as a tensor, without a copy.

        pieces: (first byte, number of bytes) each. Return None if the system does not support it, if a piece other than
        the last does not consist of whole pages, or if pieces begin at different offsets within a page. Raises
        ``UserError`` if a piece would end past the end of the file.
        """
        before = pieces[0][0] % PAGE
        if not CAN_JOIN or before % dtype.itemsize or not all(size for _, size in pieces):
            return None
        if any(begin % PAGE != before for begin, _ in pieces) or any(size % PAGE for _, size in pieces[:-1]):
            return None
        if max(map(sum, pieces)) > self._length:
            raise self._cut_short()
        region = mmap.mmap(-1, before + sum(size for _, size in pieces), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = torch.frombuffer(region, dtype=torch.uint8, count=1).data_ptr()
        place = 0
        for i, (begin, size) in enumerate(pieces):
            if not _map_at(address + place, before + size, self.handle, begin - before):
                return None
            if i:
                region[place : place + before] = self._last_bytes(pieces[i - 1], before)
            place += size
        self._regions.append((weakref.ref(region), address))
        return torch.frombuffer(region, dtype=dtype, count=math.prod(shape), offset=before).view(tuple(shape))

    def _last_bytes(self, piece: tuple[int, int], count: int) -> bytes:
        data = os.pread(self.handle, count, sum(piece) - count)
        if len(data) < count:
            raise self._cut_short()
        return data

    def _cut_short(self) -> UserError:
        return UserError(f"{self.path} was truncated while it was read")

    def holds(self, tensor: Tensor) -> bool:
        """True if the memory of ``tensor`` lies in this mapping."""
        if tensor.device.type != "cpu":
            return False
        living = [(region, begin) for ref, begin in self._regions if (region := ref()) is not None]
        return any(begin <= tensor.data_ptr() < begin + len(region) for region, begin in living)

    def release(self) -> None:
        """Release the mapping: it ends with the last tensor in it, and no new tensor can be created in it."""
        self._map = None

    def changed(self) -> bool:
        """True if the mapped file was modified or truncated since it was mapped.

        Replacing it by renaming another file onto its path does not count: the mapping keeps the old file.
        """
        return self._stamp() != self._as_mapped

    def _stamp(self) -> tuple[int, int, int, int]:
        stat = os.fstat(self.handle)
        return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _map_at(address: int, length: int, handle: int, begin: int) -> bool:
    """Map ``length`` bytes of an open file, from byte ``begin``, privately to ``address``; return False if that fails.

    The address must lie in an existing mapping, which then owns the pages. Python's ``mmap`` does not accept an
    address.
    """
    how = mmap.PROT_READ | mmap.PROT_WRITE
    return _system_mmap()(address, length, how, mmap.MAP_PRIVATE | _MAP_FIXED, handle, begin) == address


@cache
def _system_mmap() -> Any:
    call = ctypes.CDLL(None).mmap
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    call.restype = ctypes.c_void_p
    return call


class Watch:
    """Guard of a model: raises ``UserError`` if a file changes that the model's tensors are mapped from.

    Unlike a module hook, a guard does not disable the native call that computes a whole token.
    """

    def __init__(self, model: nn.Module | None = None, files: Iterable[MappedFile] = ()):
        self.model = weakref.ref(model) if model is not None else lambda: None
        self.files = tuple(files)

    def __call__(self) -> None:
        changed = next((file for file in self.files if file.changed()), None)
        model = self.model()
        if changed and model is not None and any(changed.holds(tensor) for tensor in tensors_of(model)):
            raise UserError(
                f"{changed.path} was changed while a model used weights mapped from it; "
                "load the model again, or with copy=True (--copy), which reads the weights into memory"
            )

    def __deepcopy__(self, _: Any) -> Watch:
        return Watch()  # a copy has its tensors in separate memory

    def __reduce__(self) -> Any:
        return Watch, ()


def tensors_of(model: nn.Module) -> list[Tensor]:
    """Return all parameters and buffers of ``model``."""
    return [*model.parameters(), *model.buffers()]


def watch(model: Transformer, files: Iterable[MappedFile]) -> None:
    """Add guards to ``model`` and its encoder that check before every pass that the mapped ``files`` are unchanged."""
    tensors = tensors_of(model)
    used = [file for file in files if any(file.holds(tensor) for tensor in tensors)]
    for file in used:
        file.release()
    if used:
        guard = Watch(model, used)
        for frontend in _frontends(model):
            frontend.guards.append(guard)


def watched_files(model: Transformer) -> list[MappedFile]:
    """Return the files that the guards of ``model`` check."""
    guards = (guard for frontend in _frontends(model) for guard in frontend.guards)
    return list(dict.fromkeys(file for guard in guards if isinstance(guard, Watch) for file in guard.files))


def _frontends(model: Transformer) -> list[Frontend]:
    """Return the front ends of the model and its encoder. Every pass begins at one of them."""
    return [stack.frontend for stack in (model, model.encoder) if stack is not None]


def mapped(path: Path) -> MappedFile | None:
    """Memory-map a file; None if this system or file system does not support it."""
    try:
        return MappedFile(path) if CAN_MAP else None
    except (OSError, ValueError):
        return None
