"""The user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Folder for cached data: ``QKV_CACHE`` if it is set, else the user's cache folder of the operating system."""
    return Path(os.environ.get("QKV_CACHE") or platformdirs.user_cache_dir("qkv")).expanduser()
