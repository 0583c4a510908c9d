"""Heads that many families have, as functions of a config and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qkv.interop.config import Config
from qkv.interop.family import Architecture, Row
from qkv.spec.heads import Head, LanguageModelHead


def language_model(tied: bool, ours: str = "head.weight", theirs: str = "lm_head.weight") -> Architecture:
    """logits = x W^T. ``tied``: what a config without ``tie_word_embeddings`` means."""
    return Architecture(_language_model(tied), _tie, (Row(ours, theirs),))


def _language_model(tied: bool) -> Callable[[Config], Head]:
    return lambda config: LanguageModelHead(tied=config.flag("tie_word_embeddings", tied))


def _tie(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, LanguageModelHead):
        return None
    return {"tie_word_embeddings": head.tied}
