"""Tables that the readers of all formats return: columns, and rows that are parsed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from qkv.data.corpora.text import TextSource
from qkv.data.records.model import BadRow

HEAD = 1 << 16
"""Number of characters used to detect a format."""


class Row(NamedTuple):
    """Values of one row by column, and its ``line`` in the file. Rows of the same ``group`` (questions on one article)
    stay in the same split.
    """

    line: int
    values: Mapping[str, Any]
    group: str = ""
    file: str = ""


@dataclass(frozen=True)
class Table:
    """Table read from a file of any format; unreadable rows are ``BadRow``.

    - ``parse``: function that parses all rows, from the beginning of the file
    - ``defaults``: kind of role -> columns, in order, if the format defines them
    - ``extra``: columns kept in every example in addition to its roles
    - ``header``: True if the column names come from the first line, which might be a row by mistake
    - ``digest``: hash of the uncompressed content
    - ``notes``: sentences for the user
    - ``missing``: cell texts that mean an empty cell, such as "NaN" in a CSV file
    - ``given``: True for a table that was passed in memory, whose rows count from 0
    """

    name: str
    columns: tuple[str, ...]
    parse: Callable[[], Iterator[Row | BadRow]]
    digest: str
    defaults: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    header: bool = False
    notes: tuple[str, ...] = ()
    missing: frozenset[str] = frozenset()
    given: bool = False

    def place(self, line: int) -> str:
        """Return the position of a row for messages: its line in the file, or its number in a table passed in
        memory.
        """
        return f"row {line - 1:,}" if self.given else f"line {line:,}"

    @cached_property
    def rows(self) -> Sequence[Row | BadRow]:
        """All rows, parsed at the first access and then cached."""
        return tuple(self.parse())


def lines(text: TextSource) -> Iterator[str]:
    """Yield the lines of a text, each with its line break; only a line feed ends a line. Raises ``UserError`` for
    invalid UTF-8.
    """
    parts: list[str] = []
    for block in text.blocks():
        first, *rest = block.split("\n")
        parts.append(first)
        for other in rest:
            yield "".join(parts) + "\n"
            parts = [other]
    if last := "".join(parts):
        yield last


def head(text: TextSource) -> str:
    """Return the first ``HEAD`` characters of the text, from which its format is detected."""
    return "".join(text.blocks(0, HEAD))
