"""Text whose words are coloured by their effect on an answer."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.report.markup import Markup, tag

FOR, AGAINST = "--s0", "--danger"
"""CSS variables of the colours: of words that support the answer (without them, it is less probable), and of words that
oppose it.
"""


def effects(words: Sequence[tuple[str, float]]) -> Markup:
    """Build the markup of a text from pairs (word, change of the answer's score without the word). Words with negative
    changes, which support the answer, are shaded blue, those with positive changes red.

    The largest change has the strongest colour. The tooltip of a word shows its change.
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
