"""Tokens that may not be sampled next: suppressed tokens, tokens that complete a bad word, and tokens that repeat an
n-gram.

The rules are those of the transformers library, because published checkpoints contain its settings.
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
    """Context of one row of logits: ``text`` precedes the predicted token, and begins with ``prompt`` prompt tokens."""

    text: Sequence[int]
    prompt: int
    settings: Generation


def forbid(logits: Tensor, lines: Sequence[LogitLine]) -> Tensor:
    """Return a copy of the logits (M, V) with -inf for the tokens that the settings of each line forbid.

    Return the same tensor if no settings forbid tokens.
    """
    if not any(line.settings.forbids for line in lines):
        return logits
    logits = logits.clone()
    for row, line in zip(logits, lines, strict=True):
        for ids in _suppressed(line):
            row.index_fill_(0, columns(ids, logits.shape[-1]).to(row.device), -math.inf)
        tokens = {*_completing(line.text, line.settings), *_repeating(line.text, line.settings.no_repeat_ngram_size)}
        if places := [index for index in tokens if index < logits.shape[-1]]:
            row[places] = -math.inf
    return logits


def _suppressed(line: LogitLine) -> list[tuple[int, ...]]:
    settings = line.settings
    first = settings.begin_suppress_tokens if len(line.text) == line.prompt else ()
    return [tuple(ids) for ids in (settings.suppress_tokens, first) if ids]


# A checkpoint may suppress hundreds of ids, which are the same at each token.
@lru_cache(maxsize=64)
def columns(ids: tuple[int, ...], size: int) -> Tensor:
    """Return those ``ids`` below ``size``, the number of columns of the logits, as an index tensor."""
    return torch.tensor([index for index in ids if index < size], dtype=torch.int64)


def _completing(text: Sequence[int], settings: Generation) -> set[int]:
    """Return the last id of each bad word whose other ids are the end of the text.

    A word that consists of an end token alone is ignored.
    """
    words = [list(word) for word in settings.bad_words_ids if word not in [(end,) for end in settings.stop_token_ids]]
    return {word[-1] for word in words if len(word) == 1 or list(text[1 - len(word) :]) == word[:-1]}


def _repeating(text: Sequence[int], size: int) -> set[int]:
    """Return the ids that would repeat an n-gram of ``size`` tokens."""
    if size == 0 or len(text) + 1 < size:
        return set()
    last = list(text[len(text) - size + 1 :])
    places = range(len(text) - size + 1)
    return {text[place + size - 1] for place in places if list(text[place : place + size - 1]) == last}
