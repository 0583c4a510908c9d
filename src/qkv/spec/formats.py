"""Version of the format of recipes and runs, and the migration of earlier ones."""

from __future__ import annotations

import warnings
from typing import Any, cast

from qkv.spec.errors import Problem

FORMAT = 2
"""Format 1: key ``results`` in recipes, ``evaluation.json`` in runs. No key ``format``: any of them."""


def newer(data: dict[str, Any]) -> list[Problem]:
    """Error for a file written in a later format than this version reads; empty for all others."""
    given = data.get("format")
    if not isinstance(given, int) or given <= FORMAT:
        return []
    sentence = f"a later version of qkv wrote this file, in format {given}; this version reads formats up to {FORMAT}"
    return [Problem(("format",), sentence)]


def with_present_names(data: Any) -> Any:
    """Migrate a recipe's plain data to the present format: ``results`` becomes ``typed``, ``published``; warns."""
    if not isinstance(data, dict):
        return data
    fields = {**cast("dict[str, Any]", data)}
    if isinstance(fields.get("format"), int) and fields["format"] < FORMAT:
        fields.pop("format")
    if "results" not in fields or "typed" in fields:
        return fields
    entries: Any = fields.pop("results")
    if not isinstance(entries, (list, tuple)) or not all(
        isinstance(entry, dict) for entry in cast("list[Any]", entries)
    ):
        return cast("Any", data)
    warnings.warn("the key 'results' of a recipe is now 'typed' and 'published', and was read as these")  # noqa: B028 (the file is named by the command)
    known = [dict(entry) for entry in cast("list[dict[str, Any]]", entries)]
    beside = [(entry.pop("published", None), entry.pop("source", "")) for entry in known]
    published = [{"value": value, "source": source} for value, source in beside if value is not None]
    return {**fields, "typed": known, "published": [*fields.get("published", ()), *published]}
