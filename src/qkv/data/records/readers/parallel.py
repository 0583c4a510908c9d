"""Parallel texts: line n of one file is the translation of line n of the other."""

from __future__ import annotations

from collections.abc import Iterator

from qkv.data.corpora.text import TextSource
from qkv.data.records.model import BadRow
from qkv.data.records.table import Row, Table, lines
from qkv.system.errors import UserError


def parallel(first: TextSource, second: TextSource, columns: tuple[str, str] = ("1", "2")) -> Table:
    """Build the table of parallel texts: row n holds line n of both files.

    Raises ``UserError``, with both counts, if the numbers of lines differ.
    """
    read = [[line.rstrip("\r\n") for line in lines(text)] for text in (first, second)]
    counts = [len(lines_of_files) for lines_of_files in read]
    if counts[0] != counts[1]:
        raise UserError(
            f"{first.name} has {counts[0]:,} lines and {second.name} has {counts[1]:,}; "
            "parallel texts need the same number, line by line"
        )
    if not counts[0]:
        raise UserError(f"{first.name} and {second.name} are empty")

    def rows() -> Iterator[Row | BadRow]:
        for number, pair in enumerate(zip(*read, strict=True), 1):
            yield Row(number, dict(zip(columns, pair, strict=True)))

    return Table(f"{first.name} | {second.name}", columns, rows, first.digest() + second.digest(), {"text": columns})


def is_language(name: str) -> bool:
    """Return True if a column name is a two-letter BCP 47 language code such as ``de`` or ``pt-BR``."""
    language, _, region = name.replace("_", "-").partition("-")
    return len(language) == 2 and language.isascii() and language.isalpha() and len(region) in (0, 2, 4)


def language_pair(fields: list[str]) -> bool:
    """Return True if the first two fields of a line are language codes of different languages, as in a header."""
    return len(fields) > 1 and all(map(is_language, fields[:2])) and fields[0] != fields[1]
