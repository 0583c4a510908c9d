"""Files that are either the old ones or the new ones, never half of each."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path``: under a temporary name in the same folder, on the disk, and then renamed. Raises ``OSError``."""
    partial = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
