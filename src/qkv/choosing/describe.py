"""Apply the user's overrides to a recipe that was chosen automatically."""

from __future__ import annotations

from collections.abc import Iterable

from qkv.spec.files.overrides import override, quick_form
from qkv.spec.recipe import Recipe


def as_asked(recipe: Recipe, quick: bool, overrides: Iterable[str]) -> Recipe:
    """Apply ``overrides`` to an automatic recipe, and list them in its description.

    ``quick``: first apply the overrides of the recipe's short form.
    """
    changes = list(overrides)
    result = override(recipe, [*(quick_form(recipe.quick) if quick else ()), *changes])
    if not changes or result.description != recipe.description:
        return result
    return result.changed(description=f"{recipe.description.removesuffix('.')}; overridden: {', '.join(changes)}.")
