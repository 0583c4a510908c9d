"""Atomic file replacement."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically: temporary file in the same folder, sync to disk, rename. Raises
    ``OSError``.
    """
    partial = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
