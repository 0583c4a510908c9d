"""The user's cache folder, and atomic writing of small files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Folder for cached data: ``QKV_CACHE`` if it is set, else the user's cache folder of the operating system."""
    return Path(os.environ.get("QKV_CACHE") or platformdirs.user_cache_dir("qkv")).expanduser()


def replace_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, creating parent folders; the last writer wins. Raises OSError."""
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
