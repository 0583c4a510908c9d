"""Analogies for the evaluation of word vectors: a is to b as c is to d, for all pairs of a group."""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

GROUPS: dict[str, str] = {
    "capital": "france paris, england london, germany berlin, italy rome, spain madrid, japan tokyo, russia moscow, "
    "egypt cairo",
    "people": "france french, england english, germany german, italy italian, spain spanish, japan japanese, "
    "russia russian, china chinese",
    "woman": "man woman, king queen, father mother, son daughter, brother sister, husband wife, boy girl, he she, "
    "his her, actor actress",
    "plural": "game games, song songs, year years, film films, player players, ship ships, book books, city cities, "
    "team teams",
    "irregular plural": "man men, woman women, child children, foot feet, life lives",
    "past": "make made, take took, go went, come came, write wrote, win won, lose lost, find found, begin began, "
    "become became",
    "participle": "play playing, make making, take taking, work working, write writing, run running, build building",
    "comparative": "great greater, large larger, high higher, small smaller, long longer, early earlier, late later, "
    "low lower",
    "superlative": "great greatest, large largest, high highest, small smallest, long longest, early earliest, "
    "late latest",
    "opposite": "north south, east west, northern southern, eastern western, first last, before after, high low, "
    "large small, good bad",
    "number": "one two, two three, three four, four five, five six, six seven, seven eight",
    "order": "one first, two second, three third, four fourth, five fifth, six sixth, seven seventh",
    "month": "january february, march april, may june, july august, september october, november december",
}
"""Word pairs that share a relation, from common knowledge."""


class Analogy(NamedTuple):
    """Analogy "a is to b as c is to d" of two pairs in the same ``group``, such as "capital"."""

    group: str
    a: str
    b: str
    c: str
    d: str


def analogies() -> list[Analogy]:
    """Return all analogies of two word pairs of the same group, in both orders, with four different words."""
    candidates = []
    for group, text in GROUPS.items():
        pairs = [tuple(pair.split()) for pair in text.split(", ")]
        candidates += [Analogy(group, *one, *other) for one, other in permutations(pairs, 2)]
    return [analogy for analogy in candidates if len({*analogy[1:]}) == 4]
