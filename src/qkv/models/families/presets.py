"""Specs of published models by name."""

from __future__ import annotations

from collections.abc import Callable

from qkv.models.families.gpt import gpt2, gpt3
from qkv.models.families.vanilla import base, big
from qkv.spec.model import Model
from qkv.system.errors import UserError, nearest

PRESETS: dict[str, Callable[[], Model]] = {"base": base, "big": big, "gpt2": gpt2, "gpt3": gpt3}


def preset(name: str) -> Model:
    """Return the spec of a published model, such as "gpt2". Raises ``UserError`` that suggests the nearest name."""
    if name not in PRESETS:
        raise UserError(f"there is no preset {name!r}; {nearest(name, PRESETS)}")
    return PRESETS[name]()
