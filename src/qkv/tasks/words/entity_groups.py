"""Named entities from the probabilities of tags at every token, in the four ways of the transformers library.

    simple     every token has a tag of its own
    first      a word has the tag of its first token
    average    a word has the most probable tag of the mean over its tokens
    max        a word has the tag of its most certain token

Adjacent tokens, or words, of one type are one entity; B and S begin a new one. The score of an entity is the mean
probability of its tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from qkv.tasks.words.entities import OUTSIDE
from qkv.tasks.words.sentences import Span

GROUPINGS = ("simple", "first", "average", "max")


class TokenTags(NamedTuple):
    """Probabilities of tags at the tokens of a text.

    spans: offsets of each token.   words: number of the word of each token.   chances: (N, C).
    """

    spans: Sequence[Span]
    words: Sequence[int]
    chances: np.ndarray


class _Unit(NamedTuple):
    tag: str
    score: float
    begin: int
    end: int


def entity_groups(text: str, tokens: TokenTags, labels: Sequence[str], grouping: str) -> list[dict[str, Any]]:
    """Return the entities of ``text``: type, text, offsets [start, end), and score. ``grouping``: see above."""
    groups = list[list[_Unit]]()
    for unit in _units(tokens, labels, grouping):
        same = bool(groups) and _type(groups[-1][-1].tag) == _type(unit.tag)
        if same and not unit.tag.startswith(("B-", "S-")):
            groups[-1].append(unit)
        else:
            groups.append([unit])
    return [_entity(text, group) for group in groups if group[0].tag != OUTSIDE]


def _units(tokens: TokenTags, labels: Sequence[str], grouping: str) -> list[_Unit]:
    """Return the tag of each token or each word."""
    numbers = range(len(tokens.spans))
    keys = numbers if grouping == "simple" else tokens.words
    units = list[_Unit]()
    for _, several in groupby(numbers, key=lambda i: keys[i]):
        places = list(several)
        chances = _of_word(tokens.chances[places], grouping)
        best = int(chances.argmax())
        begin, end = tokens.spans[places[0]][0], tokens.spans[places[-1]][1]
        units.append(_Unit(labels[best], float(chances[best]), begin, end))
    return units


def _of_word(chances: np.ndarray, grouping: str) -> np.ndarray:
    """Combine the probabilities (n, C) at the tokens of one word to (C)."""
    if grouping == "average":
        return chances.mean(0)
    return chances[int(chances.max(1).argmax()) if grouping == "max" else 0]


def _type(tag: str) -> str:
    mark, dash, name = tag.partition("-")
    return name if dash and mark in ("B", "I", "E", "S") else tag


def _entity(text: str, group: Sequence[_Unit]) -> dict[str, Any]:
    begin, end = group[0].begin, group[-1].end
    score = sum(unit.score for unit in group) / len(group)
    return {"type": _type(group[0].tag), "text": text[begin:end], "start": begin, "end": end, "score": score}
