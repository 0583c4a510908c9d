"""The user's cache folder, and small files in it that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Folder that ``QKV_CACHE`` names, or the user's cache folder of this system."""
    return Path(os.environ.get("QKV_CACHE") or platformdirs.user_cache_dir("qkv")).expanduser()


def replace_text(path: Path, text: str) -> None:
    """Put ``text`` at ``path`` whole, with the folders above it; of two processes the later one wins. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
