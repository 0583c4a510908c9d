"""The user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Return the folder for cached data: ``QKV_CACHE`` if it is set, else the operating system's for this user."""
    return Path(os.environ.get("QKV_CACHE") or platformdirs.user_cache_dir("qkv")).expanduser()
