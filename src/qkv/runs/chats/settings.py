"""Settings of an answer in a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.spec.base import LARGEST
from qkv.spec.generation import Generation
from qkv.system.errors import UserError, nearest

SETTINGS = (
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "seed",
)
"""Fields of ``Generation`` that apply to an answer."""


def checked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with their values validated. Raises ``UserError``."""
    wrong = next((name for name in settings if name not in SETTINGS), None)
    if wrong is not None:
        raise UserError(f"there is no setting {wrong!r} of a chat; {nearest(wrong, SETTINGS)}")
    # Without a setting only the context limits an answer, so that min_tokens may be any number.
    generation = Generation.parse({"max_new_tokens": LARGEST, **settings})
    return {name: getattr(generation, name) for name in settings}
