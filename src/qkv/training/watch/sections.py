"""Sections that commands such as ``qkv swap`` add to the report of a run, stored in ``sections.json`` so that later
reports include them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.report.markup import finite
from qkv.report.sections import DRAWN
from qkv.runs.storage.files import clear_errors
from qkv.system.files import write_file

SECTIONS = "sections.json"


def write_sections(folder: Path, sections: Sequence[Mapping[str, Any]]) -> None:
    """Write report ``sections`` (see ``qkv.report.sections``) into the run folder atomically. Raises ``UserError``."""
    path = folder / SECTIONS
    with clear_errors(str(path)):
        write_file(path, (json.dumps(finite(list(sections)), ensure_ascii=False, indent=1) + "\n").encode())


def read_sections(folder: Path) -> list[dict[str, Any]]:
    """Read the report sections that ``write_sections`` stored in a run folder; empty if the file is missing or
    malformed.
    """
    try:
        content = json.loads((folder / SECTIONS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    valid = isinstance(content, list) and all(
        isinstance(one, dict) and one.get("kind") in DRAWN and "title" in one for one in content
    )
    return content if valid else []
