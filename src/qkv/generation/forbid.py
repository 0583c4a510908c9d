"""Tokens that may not be drawn next: by suppression, words that are never completed, n-grams that are not repeated.

The rules are those of the transformers library, whose settings published checkpoints give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from qkv.spec.generation import Generation


class LogitLine(NamedTuple):
    """One row of logits: what is drawn follows ``text``, whose first ``prompt`` tokens were given."""

    text: Sequence[int]
    prompt: int
    settings: Generation


def forbid(logits: Tensor, lines: Sequence[LogitLine]) -> Tensor:
    """Logits (M, V) with -inf for the tokens that the settings of each line forbid; the same tensor if none do."""
    found = [(place, index) for place, line in enumerate(lines) for index in forbidden(line)]
    pairs = [(place, index) for place, index in found if index < logits.shape[-1]]
    if not pairs:
        return logits
    rows, columns = zip(*pairs, strict=True)
    logits = logits.clone()
    logits[list(rows), list(columns)] = -math.inf
    return logits


def forbidden(line: LogitLine) -> set[int]:
    """Ids that may not follow the text of a line."""
    text, settings = line.text, line.settings
    if not settings.forbids:
        return set()
    found = {*settings.suppress_tokens, *_completing(text, settings), *_repeating(text, settings.no_repeat_ngram_size)}
    return found | set(settings.begin_suppress_tokens) if len(text) == line.prompt else found


def _completing(text: Sequence[int], settings: Generation) -> set[int]:
    """Last ids of the forbidden words whose other ids end the text. An end token alone is no word."""
    words = [list(word) for word in settings.bad_words_ids if word not in [(end,) for end in settings.stop_token_ids]]
    return {word[-1] for word in words if len(word) == 1 or list(text[1 - len(word) :]) == word[:-1]}


def _repeating(text: Sequence[int], size: int) -> set[int]:
    """Ids that would repeat an n-gram of ``size`` tokens."""
    if size == 0 or len(text) + 1 < size:
        return set()
    last = list(text[len(text) - size + 1 :])
    places = range(len(text) - size + 1)
    return {text[place + size - 1] for place in places if list(text[place : place + size - 1]) == last}
