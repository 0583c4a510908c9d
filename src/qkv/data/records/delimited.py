"""CSV and TSV files (RFC 4180 and usual variants): a header, then one row per record."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Literal, NamedTuple

from qkv.data.records.model import BadRow
from qkv.data.records.table import Row, Table, head, lines
from qkv.data.text import TextSource
from qkv.spec.errors import UserError

DELIMITERS = (",", ";", "\t")
SNIFFED = 100
"""Number of records used to detect the delimiter."""
LONGEST_FIELD = 1 << 30
"""Maximum number of characters of a field; the csv module's default of 131,072 is too small for long articles."""

MISSING = frozenset(("NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NULL", "null"))
"""Texts of a whole cell that stand for an empty one, as for other readers of CSV. "None" is not one of them: it is a
common label.
"""


class Dialect(NamedTuple):
    """Format of a CSV or TSV file: field delimiter, and whether quotes around a field are parsed (True) or literal
    characters (False).
    """

    delimiter: str
    quoted: bool


class Fields(NamedTuple):
    """Record of a CSV or TSV file: first line number, and its fields, or in ``error`` the reason why it could not be
    read.
    """

    line: int
    fields: list[str]
    error: str = ""


def delimited(text: TextSource, format: Literal["csv", "tsv"], given: Iterable[str] = (), header: bool = True) -> Table:
    """Read a CSV or TSV file as a table.

    A column ``given`` as a number, unless it is a name in the header, means that there is no header: columns are called
    "1", "2", … and line 1 is a row; so does ``header=False``. Raises ``UserError`` for an empty file or duplicate
    column names.
    """
    records = _tab_separated(text) if format == "tsv" else partial(_records, text, Dialect(_delimiter(text), True))
    first = next(iter(records()), None)
    if first is None:
        raise UserError(f"{text.name} is empty")
    if first.error:
        raise UserError(f"{text.name}: the header in line {first.line} cannot be read: {first.error}")
    names = [name.strip() for name in first.fields]
    by_number = any(column.isdecimal() and column not in names for column in given)
    if by_number or not header:
        names = [str(i + 1) for i in range(len(names))]
        notes = (
            f"{text.name} has no header: its first line is read as a row, and its columns are called 1 to {len(names)}",
        )
        return _table(text, names, records, header=False, notes=notes)
    names = [name or str(i + 1) for i, name in enumerate(names)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(
            f"{text.name}: the header in line {first.line} has two columns {twice[0]!r}; give each column its own name"
        )
    return _table(text, names, records, header=True)


def first_fields(text: TextSource, delimiter: str) -> list[str]:
    """Fields of the first record of a delimited file, quotes taken literally; empty if there is none or it cannot be
    read.
    """
    record = next(iter(_records(text, Dialect(delimiter, False))), None)
    return record.fields if record else []


def _table(
    text: TextSource,
    names: list[str],
    records: Callable[[], Iterable[Fields]],
    header: bool,
    notes: tuple[str, ...] = (),
) -> Table:
    def rows() -> Iterator[Row | BadRow]:
        for record in itertools.islice(records(), int(header), None):
            if record.error:
                yield BadRow(text.name, record.line, record.error)
            elif len(record.fields) != len(names):
                yield BadRow(text.name, record.line, f"{_count(len(record.fields), 'field')} instead of {len(names)}")
            else:
                yield Row(record.line, dict(zip(names, record.fields, strict=True)))

    return Table(text.name, tuple(names), rows, text.digest(), header=header, notes=notes, missing=MISSING)


def _records(text: TextSource, dialect: Dialect) -> Iterator[Fields]:
    """All records of a CSV or TSV file except blank lines. Raises ``UserError`` for an unclosed quote, which would
    absorb the rest of the file.
    """
    csv.field_size_limit(LONGEST_FIELD)
    quoting = csv.QUOTE_MINIMAL if dialect.quoted else csv.QUOTE_NONE
    reader = csv.reader(lines(text), delimiter=dialect.delimiter, quoting=quoting, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end" in str(error):
                raise UserError(
                    f"{text.name}: a quote that opens in the record of line {line} is never closed"
                ) from None
            last = reader.line_num
            reason = "a carriage return outside quotes" if "new-line" in str(error) else str(error)
            yield Fields(line, [], reason + (f" (up to line {last})" if last > line else ""))
            continue
        if fields:
            yield Fields(line, fields)


def _delimiter(text: TextSource) -> str:
    """Detect the delimiter of a CSV file: the comma if it gives the first records equally many fields, else the most
    consistent of comma, semicolon and tab.
    """
    beginning = head(text)

    def agreement(delimiter: str) -> float:
        reader = csv.reader(beginning.splitlines(keepends=True), delimiter=delimiter)
        try:
            counts = [len(fields) for fields in itertools.islice(reader, SNIFFED) if fields]
        except csv.Error:
            return 0.0
        if not counts or counts[0] == 1:
            return 0.0
        return counts.count(counts[0]) / len(counts)

    return max(DELIMITERS, key=agreement)


def _tab_separated(text: TextSource) -> Callable[[], Iterable[Fields]]:
    """Function that yields the records of a TSV file. Quotes are parsed only if every record then has the same number
    of fields.
    """
    literal = list(_records(text, Dialect("\t", False)))
    if not any('"' in field for record in literal for field in record.fields):
        return lambda: literal
    try:
        found = list(_records(text, Dialect("\t", True)))
    except UserError:  # a quote that is never closed
        return lambda: literal
    alike = all(not record.error and len(record.fields) == len(found[0].fields) for record in found)
    return lambda: found if alike else literal


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
