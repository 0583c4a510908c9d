"""Files of a run: tensors with checksums, and clear messages for disk errors."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qkv.interop.files.mapped import MappedFile
from qkv.interop.files.safetensors_file import entries, in_place, what_else
from qkv.system.errors import UserError
from qkv.system.files import PARTIAL, new_file

_KEY = "qkv"
_SHA256, _SUMS = "sha256", "sums"
_WORDS = 1 << 16
"""Number of 64-bit words summed at once, few enough for the processor's caches."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_IN_THE_WAY = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR}


@contextmanager
def clear_errors(what: str) -> Iterator[None]:
    """Return a context manager that turns file system errors into a UserError "``what`` cannot be written: …".
    ``what``: for example "the run folder runs/a".
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(f"{what} cannot be written: {_reason(error)}") from error


def _reason(error: OSError | SafetensorError) -> str:
    number = error.errno if isinstance(error, OSError) else _error_number(str(error))
    if number in _FULL:
        return "the disk is full; free some space and run the same command again"
    if number == errno.EFBIG:
        return "it exceeds the maximum file size of this file system"
    if number in _FORBIDDEN:
        return "the folder is read-only or belongs to another user; name another folder"
    if number in _IN_THE_WAY:
        return "a file exists where a folder is needed, or a folder where a file is needed; name another folder"
    return os.strerror(number) if number else str(error)


def _error_number(text: str) -> int | None:
    match = re.search(r"os error (\d+)", text)
    return int(match[1]) if match else None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    """Write tensors and JSON ``metadata`` to a safetensors file atomically; return the SHA-256 of both, which is stored
    in the file.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    sha256 = digest(tensors, metadata, _bytes)
    # A single key, because safetensors writes several keys in no fixed order; equal runs should give equal files.
    header = {_KEY: json.dumps({_SHA256: sha256, _SUMS: digest(tensors, metadata, sums), **metadata}, sort_keys=True)}
    with new_file(path) as partial:
        save_file(tensors, partial, header)
    return sha256


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read (tensors, metadata) of a safetensors file. The metadata includes the file's SHA-256 as ``sha256``; it is
    empty if another program wrote the file.

    Raises UserError if the file is missing, damaged, edited or not a safetensors file.
    """
    with _opened(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = _header(file, path)
    _check(path, tensors, header, quick=False)
    return tensors, {name: value for name, value in header.items() if name != _SUMS}


def map_tensors(path: Path, copy: bool = False) -> tuple[dict[str, Tensor], dict[str, Any], MappedFile | None]:
    """Read (tensors, metadata, mapping) of a safetensors file; the tensors are memory-mapped, or in memory if ``copy``.

    The content is checked by ``sums``, which takes a tenth of the time of SHA-256 and still detects damage and edits.
    Raises UserError as ``read_tensors``.
    """
    stored = entries(path, copy)
    with _opened(path) as file:
        header = _header(file, path)
    lying = {name: in_place([entry], entry.shape) for name, entry in stored.items()}
    tensors = {name: stored[name].read() if tensor is None else tensor for name, tensor in lying.items()}
    _check(path, tensors, header, quick=_SUMS in header)
    source = next((entry.source for entry in stored.values()), None)
    return tensors, {name: value for name, value in header.items() if name != _SUMS}, source


def read_metadata(path: Path) -> dict[str, Any]:
    """Read only the metadata of a safetensors file, without verifying the checksum. Raises UserError as
    ``read_tensors``.
    """
    with _opened(path) as file:
        return {name: value for name, value in _header(file, path).items() if name != _SUMS}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "pt") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} {what_else(path)} ({error})") from None


def _header(file: Any, path: Path) -> dict[str, Any]:
    try:
        content = json.loads((file.metadata() or {}).get(_KEY) or "{}")
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise UserError(f"{path} was changed after it was written: its metadata cannot be read")
    return content


def _check(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any], quick: bool) -> None:
    """Raise UserError if the tensors do not match the checksum in ``header``; ``quick``: compare ``sums`` instead of
    SHA-256. Files written by other programs have no checksum and are accepted.
    """
    metadata = {name: value for name, value in header.items() if name not in (_SHA256, _SUMS)}
    key, content = (_SUMS, sums) if quick else (_SHA256, _bytes)
    if header and digest(tensors, metadata, content) != header.get(key):
        raise UserError(f"{path} was changed after it was written: its content does not match the checksum inside it")


def digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], content: Callable[[Tensor], Any]) -> str:
    """Compute the SHA-256 over the metadata and each tensor's name, type, shape and ``content``: a function that
    returns its bytes or ``sums`` of them.
    """
    total = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        total.update(content(tensor.contiguous().flatten().view(torch.uint8)))
    return total.hexdigest()


def _bytes(content: Tensor) -> Any:
    return content.numpy().data


def sums(content: Tensor) -> bytes:
    """Return ``sums_of`` for the bytes of a tensor."""
    return sums_of(content.numpy())


def sums_of(array: np.ndarray) -> bytes:
    """Compute a fast checksum of bytes, a uint8 array read as 64-bit words: the sum of the words, and the sum of the
    words times their positions, modulo 2^64.

    These sums detect every change of one word and every exchange of two words.
    """
    count = array.size // 8
    words, rest = array[: 8 * count].view("u8"), int.from_bytes(array[8 * count :].tobytes(), "little")
    places = np.arange(1, min(count, _WORDS) + 1, dtype="u8")
    plain, placed = rest, rest * (count + 1)
    for begin in range(0, count, _WORDS):
        piece = words[begin : begin + _WORDS]
        once = int(piece.sum())
        plain, placed = plain + once, placed + begin * once + int(np.dot(piece, places[: len(piece)]))
    return b"".join((number % (1 << 64)).to_bytes(8, "little") for number in (plain, placed))


def files_in(folder: Path) -> dict[Path, int]:
    """Return path -> size in bytes of all files under ``folder``, or of the file ``folder``, sorted by path; files that
    are deleted meanwhile are skipped.
    """
    sizes: dict[Path, int] = {folder: folder.stat().st_size} if folder.is_file() else {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            with suppress(OSError):
                sizes[path] = path.stat().st_size
    return dict(sorted(sizes.items()))


def remove_partial(folder: Path) -> None:
    """Remove the partly written files that a killed process left in ``folder``."""
    for path in folder.glob(f".*{PARTIAL}"):
        remove(path)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
