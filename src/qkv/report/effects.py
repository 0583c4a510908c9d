"""Words of a text, coloured by their effect on an answer."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.report.markup import Markup, tag

FOR, AGAINST = "--s0", "--danger"
"""Colours of words without which the answer is less, and more, probable."""


def effects(words: Sequence[tuple[str, float]]) -> Markup:
    """Markup of a text whose words are shaded by ``change``: blue where it is negative, red where it is positive.

    The strongest change has the strongest colour; the number is shown when the pointer is on the word.
    """
    most = max((abs(change) for _, change in words), default=0.0) or 1.0
    spans: list[object] = []
    for word, change in words:
        share = round(55 * abs(change) / most)
        colour = f"background: color-mix(in srgb, var({FOR if change < 0 else AGAINST}) {share}%, transparent)"
        spans += [
            tag("span", word, style=f"{colour}; padding: 1px 3px; border-radius: 3px", title=f"{change:+.3f}"),
            " ",
        ]
    return tag("p", *spans, style="line-height: 1.9")
