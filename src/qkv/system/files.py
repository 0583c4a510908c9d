"""Atomic replacement of files: a file always has its complete old or complete new content, even after a crash."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PARTIAL = ".partial"
"""Suffix of the names of unfinished files."""


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Context manager: an empty file under a temporary name beside ``path``, which it replaces at the end of the block.

    Before the replacement, the new file is flushed to disk, and gets the permissions of the file that it replaces, or
    of a new file. If the block raises an error, the temporary file is removed. Raises ``OSError``.
    """
    partial = path.with_name(f".{path.name}-{secrets.token_hex(4)}{PARTIAL}")
    try:
        partial.touch()
        mode = (path if path.exists() else partial).stat().st_mode & 0o777
        yield partial
        partial.chmod(mode)  # some libraries make files that only their owner can read
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_file(path: Path, content: bytes | str) -> None:
    """Write ``content``, text as UTF-8, to ``path`` atomically. Raises ``OSError``."""
    with new_file(path) as partial:
        partial.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def sync(path: Path) -> None:
    """Flush a file, or the file names in a folder if the system supports it, to disk."""
    if not path.is_dir():
        _flush(path, os.O_RDWR)
    elif os.name == "posix":
        with suppress(PermissionError):
            _flush(path, os.O_RDONLY)


def _flush(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
