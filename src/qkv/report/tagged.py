"""Markup of sentences with a tag below each word: coloured spans, and wrong tags beside the true ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from qkv.report.markup import Markup, tag

_COLOURS = 6


def legend(kinds: Sequence[str]) -> Markup:
    """Build the legend for tagged sentences: the colour of each entity type in ``kinds``, and how errors are marked."""
    names = [tag("span", name, class_=f"kind t{i % _COLOURS}") for i, name in enumerate(kinds)]
    wrong = tag("span", tag("s", "answer"), " truth", class_="wrong")
    return tag("div", *names, tag("span", "error: ", wrong, class_="beside"), class_="tags-legend")


def sentence(words: Sequence[str], tags: Sequence[str], truth: Sequence[str] | None, kinds: Sequence[str]) -> Markup:
    """Build the markup of one sentence with the predicted tag below each word.

    A tag that continues a span (I-) is only shown by its colour. Where the true tag in ``truth`` differs, it is shown,
    too.
    """
    markup = [_word(word, got, target or got, before, kinds) for word, got, target, before in _walk(words, tags, truth)]
    return tag("div", *markup, class_="tagged")


def _walk(
    words: Sequence[str], tags: Sequence[str], truth: Sequence[str] | None
) -> Iterator[tuple[str, str, str | None, str]]:
    before = "O"
    for word, got, target in zip_longest(words, tags, truth or ()):
        yield word, got, target, before
        before = got


def _word(word: str, got: str, target: str, before: str, kinds: Sequence[str]) -> Markup:
    name = kind(got)
    # The label of a span is shown below its first word.
    goes_on = got.startswith("I-") and kind(before) == name
    label = "" if got == "O" or goes_on else name
    below: object = label or "\u00a0"
    if got != target:
        below = tag(
            "span", tag("s", name if got != "O" else "–"), f" {kind(target) if target != 'O' else '–'}", class_="wrong"
        )
    colour = f"t{list(kinds).index(name) % _COLOURS}" if got != "O" and name in kinds else "plain"
    about = None if got == target else f"predicted {got}, true {target}"
    return tag(
        "span",
        tag("b", word, class_=colour),
        tag("i", below),
        class_="word wrong-word" if about else "word",
        title=about,
    )


def kind(label: str) -> str:
    """Return the entity type of a BIO (or BIOES, BILOU) tag: PER for B-PER and I-PER; other tags are returned
    unchanged.
    """
    head, dash, rest = label.partition("-")
    return rest if dash and head in ("B", "I", "E", "S", "L", "U") else label
