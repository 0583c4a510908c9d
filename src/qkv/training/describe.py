"""Descriptions of recipes that were chosen for data and machine, kept true where a caller changes what was chosen."""

from __future__ import annotations

from collections.abc import Iterable

from qkv.spec.overrides import override, quick_form
from qkv.spec.recipe import Recipe


def as_asked(recipe: Recipe, quick: bool, overrides: Iterable[str]) -> Recipe:
    """``recipe`` in its short form if ``quick``, changed by ``overrides``; its description then names the changes."""
    given = list(overrides)
    found = override(recipe, [*(quick_form(recipe.quick) if quick else ()), *given])
    if not given or found.description != recipe.description:
        return found
    return found.changed(description=f"{recipe.description.removesuffix('.')}, but for {', '.join(given)}.")
