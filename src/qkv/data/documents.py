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


class Pieces(NamedTuple):
    """Texts that are encoded one by one; ``opens``: which of them begin a document."""

    texts: list[str]
    opens: list[bool]


def pieces(blocks: Iterable[str], borders: Borders, separator: str | None) -> Iterator[Pieces]:
    """All of ``blocks``, about as many ``Pieces`` as there are blocks.

    A document ends after its ``separator``; nothing between two separators is no document, so the second one belongs to the document
    before. Without a separator all is one document. A document longer than ``piece_size`` goes on in further pieces, cut at borders.
    """
    end, rest, fresh = separator or "", "", True
    for block in blocks:
        *closed, rest = (rest + block).split(separator) if separator else (rest + block,)
        found = Pieces([], [])
        for body in closed:
            if len(body) < borders.piece_size:  # lines: there may be a hundred million of them
                found.texts.append(body + end)
                found.opens.append(fresh and body != "")
            else:
                _add(found, _cut(body + end, borders), fresh)
            fresh = True
        begun, rest = _cut_open(rest, borders, max(len(end) - 1, 0))
        _add(found, begun, fresh)
        fresh = fresh and not begun
        yield found
    if rest:
        found = Pieces([], [])
        _add(found, _cut(rest, borders), fresh)
        yield found


def _add(found: Pieces, texts: list[str], opens: bool) -> None:
    """Append the parts of one document, of which the first may open it."""
    found.texts.extend(texts)
    for _ in texts:
        found.opens.append(opens)
        opens = False


def _cut(text: str, borders: Borders) -> list[str]:
    """All of ``text``."""
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
