"""Names of files that store data from memory: a run stores a copy of it, named after the digest of its content."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.spec.recipe import Recipe

FOLDER = "data"
"""Subfolder of a run's folder that contains these files."""
DIGITS = 32
"""Number of hexadecimal digits of the content's SHA-256 in a file's name."""
TABLE, TEXT = ".jsonl", ".txt"
"""File extensions of a table and of running text."""
_KEPT = re.compile(rf"(?:^|[/\\]){FOLDER}[/\\]([0-9a-f]{{{DIGITS}}}(?:{re.escape(TABLE)}|{re.escape(TEXT)}))$")
_SOURCES = ("source", "validation", "test")


def kept_name(source: str) -> str | None:
    """Return the file name, without folders, if ``source`` is a stored copy of data from memory; else None.

    The name determines the content, so the folder is not part of a run's identity.
    """
    match = _KEPT.search(source)
    return match[1] if match else None


def is_kept_text(source: str) -> bool:
    """Return True if ``source`` is a stored copy of texts from memory, which is running text whatever its content."""
    return (kept_name(source) or "").endswith(TEXT)


def without_folders(data: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the plain fields of ``qkv.spec.data.Data``, with the folders of stored copies removed."""
    return {name: (kept_name(str(value)) or value) if name in _SOURCES else value for name, value in data.items()}


def found_in(folder: Path, recipe: Recipe) -> Recipe:
    """Return the recipe of the run in ``folder``, with the current paths of its stored copies of data.

    The paths change if the folder was moved.
    """
    names = {field: kept_name(getattr(recipe.data, field) or "") for field in _SOURCES}
    here = {field: folder / FOLDER / name for field, name in names.items() if name}
    moved = {field: str(path) for field, path in here.items() if path.is_file()}
    if all(getattr(recipe.data, field) == path for field, path in moved.items()):
        return recipe
    return recipe.changed(data=recipe.data.changed(**moved))
