"""Tables: styled on a terminal, plain aligned text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO

from qkv.report.figures import all_numbers, cell
from qkv.report.markup import visible

Rows = Sequence[Sequence[object]]
_WORD = 24
"""Longest word that a narrow column does not break."""


def print_table(title: str, columns: Sequence[str], rows: Rows, stream: IO[str] | None = None) -> None:
    """Print a table to standard output or ``stream``, styled on a terminal, else as plain text; numeric columns are
    right-aligned.
    """
    out: IO[str] = stream or sys.stdout
    if out.isatty():
        _print_rich(title, columns, rows, out)
    else:
        text = format_table(title, columns, rows)
        encoding = getattr(out, "encoding", None) or "utf-8"
        out.write(text.encode(encoding, "replace").decode(encoding))


def format_table(title: str, columns: Sequence[str], rows: Rows) -> str:
    """Format a table as plain text: title, empty line, column names, one line per row."""
    from rich.cells import cell_len

    texts = [[visible(name) for name in columns], *_texts(columns, rows)]
    widths = [max(cell_len(row[i]) for row in texts) for i in range(len(columns))]
    right = _right(columns, rows)
    lines = [visible(title), ""] if title else []
    for row in texts:
        padded = [_padded(text, width - cell_len(text), r) for text, width, r in zip(row, widths, right, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines) + "\n"


def _padded(text: str, missing: int, right: bool) -> str:
    return " " * missing + text if right else text + " " * missing


def _texts(columns: Sequence[str], rows: Rows) -> list[list[str]]:
    """Format every cell as one line of text; pad short rows with empty cells."""
    filled = [[*row, *[None] * (len(columns) - len(row))][: len(columns)] for row in rows]
    return [[visible(cell(value)).replace("\n", "␊").replace("\t", " ") for value in row] for row in filled]


def _right(columns: Sequence[str], rows: Rows) -> list[bool]:
    return [all_numbers(row[i] for row in rows if i < len(row)) for i in range(len(columns))]


def _print_rich(title: str, columns: Sequence[str], rows: Rows, stream: IO[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(visible(title), style="bold") if title else None,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    texts = _texts(columns, rows)
    for i, (name, right) in enumerate(zip(columns, _right(columns, rows), strict=True)):
        words = [len(word) for row in texts for word in row[i].split()]
        table.add_column(
            Text(visible(name)),
            justify="right" if right else "left",
            overflow="fold",
            header_style="dim",
            min_width=min(_WORD, max(words, default=0)),
        )
    for row in texts:
        table.add_row(*(Text(text) for text in row))
    Console(file=stream, force_terminal=True).print(table)
