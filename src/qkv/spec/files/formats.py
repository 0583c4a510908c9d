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
    number = data.get("format")
    if not isinstance(number, int) or number <= FORMAT:
        return []
    sentence = f"a later version of qkv wrote this file, in format {number}; this version reads formats up to {FORMAT}"
    return [Problem(("format",), sentence)]


def upgraded(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain data of a recipe or a model in this format. Data in this format is returned as it is."""
    result = dict(data)
    if result.get("format") == _BEFORE:
        result["format"] = FORMAT
    model = result.get("model")
    if isinstance(model, dict) and _WIDE in model:
        rest = dict(cast("dict[str, Any]", model))
        result = {_WIDE: rest.pop(_WIDE), **result, "model": rest}
    elif result.get(_WIDE, "") is None and not {"model", "data"} & result.keys():
        del result[_WIDE]  # of a model alone
    return result


def upgraded_path(path: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the path in this format of the setting at ``path``."""
    return path[1:] if path[:2] == _WIDE_BEFORE else path


def downgraded(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the essential settings of a recipe as in format 2, so that digests of earlier runs stay valid."""
    result = dict(content)
    if _WIDE in result:
        result["model"] = {**result.get("model", {}), _WIDE: result.pop(_WIDE)}
    return result
