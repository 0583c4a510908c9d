"""CoNLL format: one token and its tag per line, blank lines between sentences (Tjong Kim Sang and De Meulder 2003)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

from qkv.data.corpora.text import TextSource
from qkv.data.records.model import BadRow
from qkv.data.records.table import Row, Table, lines
from qkv.system.errors import UserError, quoted

DOCUMENT = "-DOCSTART-"
NO_TOKEN = re.compile(r"\d+[-.]\d+")
"""CoNLL-U id of a token range or an empty node."""
NOTHING = re.compile(r"(?!)")


def conll(text: TextSource) -> Table:
    """Read a CoNLL file as a table with one row per sentence; columns "1", "2", … hold lists with one string per token.

    Default columns: words first, tags last. Fields are separated by tabs if the first line has one, else by white
    space. Blank lines end a sentence; ``-DOCSTART-`` lines and, in tab-separated files, comment lines (# and no tab)
    are skipped. A file with ten fields whose first field is 1 (or 1-2) is CoNLL-U (universaldependencies.org/format):
    words are FORM, tags are UPOS, and ranges such as 1-2 and empty nodes such as 1.1 are skipped. Raises ``UserError``
    for a file without tokens or with only one column.
    """
    first = next((line for line in lines(text) if line.strip() and not line.startswith((DOCUMENT, "#"))), None)
    if first is None:
        raise UserError(f"{text.name} is empty")
    cut = _by_tabs if "\t" in first.strip() else str.split
    width = len(cut(first))
    if width < 2:
        raise UserError(
            f"{text.name}: CoNLL needs a token and a tag per line, and {quoted(first.strip())} has one field"
        )
    columns = tuple(str(i + 1) for i in range(width))
    universal = width == 10 and cut(first)[0] in ("1", "1-2")
    words, tags = (columns[1], columns[3]) if universal else (columns[0], columns[-1])
    no_token = NO_TOKEN if universal else NOTHING
    return Table(
        text.name,
        columns,
        lambda: _sentences(text, cut, columns, no_token),
        text.digest(),
        {"words": (words,), "tags": (tags,)},
    )


def _sentences(
    text: TextSource, cut: Callable[[str], list[str]], columns: tuple[str, ...], no_token: re.Pattern[str]
) -> Iterator[Row | BadRow]:
    tokens: list[list[str]] = []
    begin, bad = 0, None
    for number, line in enumerate(itertools.chain(lines(text), ("\n",)), 1):
        if not line.strip() or line.startswith(DOCUMENT):
            if bad or tokens:
                yield bad or Row(
                    begin, {name: list(column) for name, column in zip(columns, zip(*tokens, strict=True), strict=True)}
                )
            tokens, bad = [], None
            continue
        fields = cut(line)
        if not _is_comment(line, cut) and not no_token.fullmatch(fields[0]):
            begin = begin if tokens else number
            bad = bad or _fault(text, number, fields, len(columns))
            if not bad:
                tokens.append(fields)


def _by_tabs(line: str) -> list[str]:
    return [field.strip() for field in line.rstrip("\r\n").split("\t")]


def _is_comment(line: str, cut: Callable[[str], list[str]]) -> bool:
    return cut is _by_tabs and line.startswith("#") and "\t" not in line


def _fault(text: TextSource, number: int, fields: list[str], width: int) -> BadRow | None:
    if len(fields) != width:
        return BadRow(text.name, number, f"{len(fields)} field{'s' * (len(fields) != 1)} instead of {width}")
    if not all(fields):
        return BadRow(text.name, number, f"field {fields.index('') + 1} is empty")
    return None
