"""Version of the format of recipes and runs, and the conversion of the version before it.

Format 3 has the wide path beside the model, ``wide``; format 2 has it in the model, ``model.wide``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from qkv.spec.errors import Problem

FORMAT = 3
"""Version of the format that this package writes."""
_BEFORE = 2
"""Oldest version that this package reads."""
_WIDE, _WIDE_BEFORE = "wide", ("model", "wide")


def newer(data: dict[str, Any]) -> list[Problem]:
    """Return one error for a file in a later format than this version reads; empty for all others."""
    given = data.get("format")
    if not isinstance(given, int) or given <= FORMAT:
        return []
    sentence = f"a later version of qkv wrote this file, in format {given}; this version reads formats up to {FORMAT}"
    return [Problem(("format",), sentence)]


def upgraded(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain data of a recipe or a model in this format. Data in this format is returned as it is."""
    found = dict(data)
    if found.get("format") == _BEFORE:
        found["format"] = FORMAT
    model = found.get("model")
    if isinstance(model, dict) and _WIDE in model:
        rest = dict(cast("dict[str, Any]", model))
        found = {_WIDE: rest.pop(_WIDE), **found, "model": rest}
    elif found.get(_WIDE, "") is None and not {"model", "data"} & found.keys():
        del found[_WIDE]  # of a model alone
    return found


def upgraded_path(path: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the path in this format of the setting at ``path``."""
    return path[1:] if path[:2] == _WIDE_BEFORE else path


def downgraded(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the essential settings of a recipe as in format 2, so that digests of earlier runs stay valid."""
    found = dict(content)
    if _WIDE in found:
        found["model"] = {**found.get("model", {}), _WIDE: found.pop(_WIDE)}
    return found
