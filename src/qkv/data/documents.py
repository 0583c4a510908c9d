"""A stream of text cut into pieces that a tokenizer can encode one by one, and into documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

LONGEST = 1 << 20
"""Characters after which a text without any border is cut where it stands."""


class Borders(Protocol):
    """Where a text may be cut; a tokenizer is one."""

    @property
    def piece_size(self) -> int:
        """Characters that a piece should have."""
        ...

    def border(self, text: str) -> int:
        """The last place where ``text`` may be cut; 0 if there is none."""
        ...


class Piece(NamedTuple):
    """Text that is encoded by itself; ``opens`` is true where it begins a document."""

    text: str
    opens: bool


def pieces(blocks: Iterable[str], borders: Borders, separator: str | None) -> Iterator[list[Piece]]:
    """All of ``blocks``, about one list of pieces a block.

    A document ends after its ``separator``; nothing between two separators is no document, so the second one belongs to the document
    before. Without a separator all is one document. A document longer than ``piece_size`` goes on in further pieces, cut at borders.
    """
    rest, fresh = "", True
    for block in blocks:
        *closed, rest = (rest + block).split(separator) if separator else (rest + block,)
        found: list[Piece] = []
        for body in closed:
            found += _numbered(_cut(body + (separator or ""), borders), fresh and bool(body))
            fresh = True
        begun, rest = _cut_open(rest, borders, len(separator or " ") - 1)
        found += _numbered(begun, fresh)
        fresh = fresh and not begun
        yield found
    if rest:
        yield _numbered(_cut(rest, borders), fresh)


def _numbered(texts: list[str], opens: bool) -> list[Piece]:
    return [Piece(text, opens and not i) for i, text in enumerate(texts)]


def _cut(text: str, borders: Borders) -> list[str]:
    """All of ``text``."""
    if len(text) <= borders.piece_size:
        return [text]
    found, rest = _cut_open(text, borders, 0)
    return [*found, rest] if rest else found


def _cut_open(text: str, borders: Borders, keep: int) -> tuple[list[str], str]:
    """Pieces of a ``text`` that goes on, and what must wait: at least the last ``keep`` characters, which may begin a separator."""
    found, start = [], 0
    while len(text) - keep - start >= borders.piece_size:
        length = borders.border(text[start : start + borders.piece_size])
        if not length:
            ahead = text[start : len(text) - keep]
            length = borders.border(ahead) or (len(ahead) if len(ahead) > LONGEST else 0)
        if not length:
            break
        found.append(text[start : start + length])
        start += length
    return found, text[start:]
