"""A table as the readers of all formats give it: columns, and rows that are read anew each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from qkv.data.records.model import BadRow
from qkv.data.text import Text

HEAD = 1 << 16
"""Characters from which a format is told."""


class Row(NamedTuple):
    """What stands in the columns. Rows of the same ``group`` (questions on one article) stay together when a part is held out."""

    line: int
    values: Mapping[str, Any]
    group: str = ""
    file: str = ""


@dataclass(frozen=True)
class Table:
    """``rows()`` streams the rows from the first one, those that cannot be read as ``BadRow``.

    - ``defaults``: columns by the kind of role that takes them, in order, where the format itself says so
    - ``extra``: columns that every example keeps beside its roles
    - ``header``: the columns are named by the first line, which may have been meant as a row
    - ``digest``: of the content, unpacked
    """

    name: str
    columns: tuple[str, ...]
    rows: Callable[[], Iterator[Row | BadRow]]
    digest: str
    defaults: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    header: bool = False
    notes: tuple[str, ...] = ()


def lines(text: Text) -> Iterator[str]:
    """The lines with their ends; only a line feed ends one. Raises ``UserError`` where the bytes are not UTF-8."""
    parts: list[str] = []
    for block in text.blocks():
        first, *others = block.split("\n")
        parts.append(first)
        for other in others:
            yield "".join(parts) + "\n"
            parts = [other]
    if last := "".join(parts):
        yield last


def head(text: Text) -> str:
    """The beginning, enough to tell what it is."""
    return "".join(text.blocks(0, HEAD))
