"""Tokens that may not be drawn next: by suppression, words that are never completed, n-grams that are not repeated.

The rules are those of the transformers library, whose settings published checkpoints give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.spec.generation import Generation


class LogitLine(NamedTuple):
    """One row of logits: what is drawn follows ``text``, whose first ``prompt`` tokens were given."""

    text: Sequence[int]
    prompt: int
    settings: Generation


def forbid(logits: Tensor, lines: Sequence[LogitLine]) -> Tensor:
    """Logits (M, V) with -inf for the tokens that the settings of each line forbid; the same tensor if none do."""
    if not any(line.settings.forbids for line in lines):
        return logits
    logits = logits.clone()
    for row, line in zip(logits, lines, strict=True):
        for ids in _suppressed(line):
            row.index_fill_(0, _columns(ids, logits.shape[-1]).to(row.device), -math.inf)
        found = {*_completing(line.text, line.settings), *_repeating(line.text, line.settings.no_repeat_ngram_size)}
        if places := [index for index in found if index < logits.shape[-1]]:
            row[places] = -math.inf
    return logits


def _suppressed(line: LogitLine) -> list[tuple[int, ...]]:
    settings = line.settings
    first = settings.begin_suppress_tokens if len(line.text) == line.prompt else ()
    return [tuple(ids) for ids in (settings.suppress_tokens, first) if ids]


# A checkpoint may suppress hundreds of ids, and the same at each token.
@lru_cache(maxsize=64)
def _columns(ids: tuple[int, ...], size: int) -> Tensor:
    """Index of the ``ids`` below ``size``, the number of columns of the logits."""
    return torch.tensor([index for index in ids if index < size], dtype=torch.int64)


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
