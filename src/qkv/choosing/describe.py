"""Descriptions of automatic recipes, updated when the caller overrides a choice."""

from __future__ import annotations

from collections.abc import Iterable

from qkv.spec.files.overrides import override, quick_form
from qkv.spec.recipe import Recipe


def as_asked(recipe: Recipe, quick: bool, overrides: Iterable[str]) -> Recipe:
    """Apply ``overrides``, and before them the shorter quick form (if ``quick``), to an automatic recipe; its
    description then lists the overrides.
    """
    given = list(overrides)
    found = override(recipe, [*(quick_form(recipe.quick) if quick else ()), *given])
    if not given or found.description != recipe.description:
        return found
    return found.changed(description=f"{recipe.description.removesuffix('.')}, but for {', '.join(given)}.")
