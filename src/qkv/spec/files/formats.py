"""Version of the format of recipes and runs."""

from __future__ import annotations

from typing import Any

from qkv.spec.errors import Problem

FORMAT = 2
"""Version of the format that this package writes, and the oldest that it reads."""


def newer(data: dict[str, Any]) -> list[Problem]:
    """Return one error for a file in a later format than this version reads; empty for all others."""
    given = data.get("format")
    if not isinstance(given, int) or given <= FORMAT:
        return []
    sentence = f"a later version of qkv wrote this file, in format {given}; this version reads formats up to {FORMAT}"
    return [Problem(("format",), sentence)]
