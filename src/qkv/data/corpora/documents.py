"""Split a text stream into documents, and these into pieces that can be tokenised separately."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

LONGEST = 1 << 20
"""Maximum number of characters without a border; a longer stretch is split at any position."""


class Borders(Protocol):
    """Interface of a tokenizer for splitting text at positions where both sides can be tokenised separately."""

    @property
    def piece_size(self) -> int:
        """Target size of a piece in characters."""
        ...

    def border(self, text: str) -> int:
        """Return the last index at which ``text`` may be split so that both sides can be tokenised separately; 0 if
        there is none.
        """
        ...


class Pieces(NamedTuple):
    """Pieces of text to tokenise separately; ``opens[i]`` is True if piece i begins a document."""

    texts: list[str]
    opens: list[bool]


def pieces(blocks: Iterable[str], borders: Borders, separator: str | None) -> Iterator[Pieces]:
    """Split a text, read from ``blocks``, into documents, and the documents into pieces to tokenise separately.

    Yields one ``Pieces`` per block, and one for any rest of the text. A document ends after its ``separator``. Empty
    documents do not count: a repeated separator belongs to the previous document. Without a separator all text is one
    document. Documents longer than ``piece_size`` are split into several pieces.
    """
    end, rest, fresh = separator or "", "", True
    for block in blocks:
        *closed, rest = (rest + block).split(separator) if separator else (rest + block,)
        group = Pieces([], [])
        for body in closed:
            if len(body) < borders.piece_size:  # fast path for lines: there may be a hundred million of them
                group.texts.append(body + end)
                group.opens.append(fresh and body != "")
            else:
                _add(group, _cut(body + end, borders), fresh)
            fresh = True
        begun, rest = _cut_open(rest, borders, max(len(end) - 1, 0))
        _add(group, begun, fresh)
        fresh = fresh and not begun
        yield group
    if rest:
        group = Pieces([], [])
        _add(group, _cut(rest, borders), fresh)
        yield group


def _add(group: Pieces, texts: list[str], opens: bool) -> None:
    """Append the pieces ``texts`` of one document; ``opens``: True if the first piece begins the document."""
    group.texts.extend(texts)
    for _ in texts:
        group.opens.append(opens)
        opens = False


def _cut(text: str, borders: Borders) -> list[str]:
    """Split a complete text into pieces at the tokenizer's borders."""
    parts, rest = _cut_open(text, borders, 0)
    return [*parts, rest] if rest else parts


def _cut_open(text: str, borders: Borders, keep: int) -> tuple[list[str], str]:
    """Split a text that may continue; return (pieces, rest).

    The rest keeps at least the last ``keep`` characters, because they may be the beginning of a separator.
    """
    parts, start = [], 0
    while len(text) - keep - start >= borders.piece_size:
        length = borders.border(text[start : start + borders.piece_size])
        if not length:
            ahead = text[start : len(text) - keep]
            length = borders.border(ahead) or (len(ahead) if len(ahead) > LONGEST else 0)
        if not length:
            break
        parts.append(text[start : start + length])
        start += length
    return parts, text[start:]
