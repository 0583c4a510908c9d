"""Error for invalid input, and helpers that format its message: location, invalid value, allowed values."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_OF_A_WORD, MOST_OF_A_SENTENCE = 400, 2000
"""Maximum number of characters of a word, such as a file path, and of a whole message."""


class UserError(ValueError):
    """Invalid input. The message is one sentence for the user; the command line prints it and exits with code 2."""

    code = 2

    def __init__(self, sentence: str):
        words = (
            clipped(word, MOST_OF_A_WORD) for word in re.split(r"(\s+)", clipped(sentence, 10 * MOST_OF_A_SENTENCE))
        )
        super().__init__(clipped("".join(words), MOST_OF_A_SENTENCE))


def quoted(value: object, most: int = 60) -> str:
    """Return ``repr(value)``, shortened in the middle to ``most`` characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to format integers of more than 4,300 digits
        return f"an integer of {value.bit_length():,} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return clipped(text, most)


def clipped(text: str, most: int) -> str:
    """Shorten ``text`` in the middle to ``most`` characters."""
    if len(text) <= most:
        return text
    end = (most - 3) // 3
    return f"{text[: most - 3 - end]}...{text[-end:]}"


def dotted(path: Iterable[str | int]) -> str:
    """Format the path ``("model", "blocks", 0, "norm")`` as ``model.blocks.0.norm``."""
    return ".".join(clipped(str(part), 60) for part in path)


_LISTED = 60
"""Maximum number of names that a message lists."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return "did you mean …?" with the closest of ``allowed``, else "allowed: …" with the first ``_LISTED``.

    See ``closest``.
    """
    names = sorted(allowed)
    name = closest(word, names)
    if name is not None:
        return f"did you mean {name!r}?"
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"allowed: {', '.join(names[:_LISTED])}{more}"


def closest(word: str, allowed: Iterable[str]) -> str | None:
    """Return the closest of ``allowed`` within two edits (one for words of up to five characters), or None."""
    most = 2 if len(word) > 5 else 1
    edits, name = min(((_edits(word, name, most), name) for name in allowed), default=(most + 1, ""))
    return name if edits <= most and len(word) > edits else None


def _edits(word: str, other: str, most: int) -> int:
    """Compute the Damerau–Levenshtein distance of two words, capped at ``most`` + 1."""
    if abs(len(word) - len(other)) > most:
        return most + 1
    before, row = list[int](), list(range(len(other) + 1))
    for i, letter in enumerate(word, 1):
        earlier, before, row = before, row, [i]
        for j, other_letter in enumerate(other, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other_letter)))
            if i > 1 and j > 1 and letter == other[j - 2] and word[i - 2] == other_letter:
                row[j] = min(row[j], earlier[j - 2] + 1)
        if min(row) > most:
            return most + 1
    return min(row[-1], most + 1)
