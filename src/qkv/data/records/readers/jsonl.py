"""JSON objects: one per line (https://jsonlines.org), or a list of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from qkv.data.corpora.text import TextSource
from qkv.data.records.model import BadRow
from qkv.data.records.table import Row, Table, head, lines
from qkv.system.errors import UserError

SAMPLE = 1000
"""Number of first objects whose keys define the columns."""


def jsonl(text: TextSource) -> Table:
    """Read a JSONL file or a JSON list.

    Raises ``UserError`` for an empty file, a broken list, or if none of the first objects can be read.
    """
    rows = list(_elements(text) if head(text).lstrip()[:1] == "[" else _lines(text))
    if not rows:
        raise UserError(f"{text.name} is empty")
    columns = dict.fromkeys(key for row in rows[:SAMPLE] if isinstance(row, Row) for key in row.values)
    if not columns:
        bad = next((row for row in rows[:SAMPLE] if isinstance(row, BadRow)), None)
        why = f": line {bad.line} is {bad.reason}" if bad else ""
        raise UserError(
            f"{text.name} holds no JSON object with keys{why}; write one object per line, or a list of objects"
        )
    return Table(text.name, tuple(columns), lambda: iter(rows), text.digest())


def _lines(text: TextSource) -> Iterator[Row | BadRow]:
    for number, line in enumerate(lines(text), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.rstrip())
        except (ValueError, RecursionError) as error:
            yield BadRow(text.name, number, f"not JSON ({_reason(error)})")
            continue
        yield _row(text, number, value)


def _elements(text: TextSource) -> Iterator[Row | BadRow]:
    """Yield the rows of a JSON list of objects, with the line at which each object begins.

    Raises ``UserError`` if the list itself is broken.
    """
    content = "".join(text.blocks())
    decoder = json.JSONDecoder()
    seen, line, at = 0, 1, content.index("[") + 1
    while True:
        at = _past(content, at, " \t\r\n,")
        line, seen = line + content.count("\n", seen, at), at
        if content[at : at + 1] == "]":
            return
        try:
            value, at = decoder.raw_decode(content, at)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{text.name}: the list is broken in line {line}: {_reason(error)}") from None
        yield _row(text, line, value)


def _row(text: TextSource, line: int, value: Any) -> Row | BadRow:
    if isinstance(value, dict):
        return Row(line, value)
    return BadRow(text.name, line, "not a JSON object")


def _past(content: str, at: int, blanks: str) -> int:
    while at < len(content) and content[at] in blanks:
        at += 1
    return at


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
