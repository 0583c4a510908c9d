"""Pages with parts that programs write."""

from __future__ import annotations

import sys
from pathlib import Path


def placed(page: str, begin: str, content: str, end: str) -> str:
    """``page`` with ``content`` between the lines ``begin`` and ``end``. Raises ``ValueError`` if one is missing."""
    before, first, rest = page.partition(f"{begin}\n")
    _, last, after = rest.partition(f"{end}\n")
    if not (first and last):
        raise ValueError(f"the page has no place for this part: {begin} … {end}")
    return f"{before}{begin}\n\n{content}\n{end}\n{after}"


def settled(path: Path, after: str, check: bool, source: str) -> int:
    """Write a page if it changes; with ``check`` change nothing, and return 1 if it would differ from ``source``."""
    changes = path.read_text(encoding="utf-8") != after
    if changes and check:
        sys.stderr.write(f"{path} differs from {source}; run make tables\n")
        return 1
    if changes:
        path.write_text(after, encoding="utf-8")
    return 0
