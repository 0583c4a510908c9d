"""CSV and TSV (RFC 4180 and its usual variants): a header, then a row a record."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from qkv.data.records.model import BadRow
from qkv.data.records.table import Row, Table, head, lines
from qkv.data.text import Text
from qkv.spec.errors import UserError

DELIMITERS = (",", ";", "\t")
SNIFFED = 100
"""Records by which the delimiter is told."""
LONGEST_FIELD = 1 << 30
"""Characters; the default of the csv module, 131,072, is less than a long article."""


class Dialect(NamedTuple):
    """What stands between two fields, and whether a quote at the beginning of a field is a sign or a character."""

    delimiter: str
    quoted: bool


class Record(NamedTuple):
    """The fields of one record that begins in ``line``, or why it could not be read."""

    line: int
    fields: list[str]
    error: str = ""


def delimited(text: Text, format: Literal["csv", "tsv"], given: Iterable[str] = (), header: bool = True) -> Table:
    """The table of a CSV or TSV file.

    A column that is ``given`` as a number means that there is no header, unless a column has that name: then the columns
    are called "1", "2", … and line 1 is a row. Raises ``UserError`` for an empty file, and for a header that names two columns alike.
    """
    dialect = Dialect(_delimiter(text), True) if format == "csv" else Dialect("\t", _quoted(text))
    first = next(iter(_records(text, dialect)), None)
    if first is None:
        raise UserError(f"{text.name} is empty")
    if first.error:
        raise UserError(f"{text.name}: the header in line {first.line} cannot be read: {first.error}")
    names = [name.strip() for name in first.fields]
    by_number = any(column.isdecimal() and column not in names for column in given)
    if by_number or not header:
        names = [str(i + 1) for i in range(len(names))]
        notes = (f"{text.name} has no header: its first line is taken as a row, and its columns are called 1 to {len(names)}",)
        return _table(text, names, dialect, header=False, notes=notes)
    names = [name or str(i + 1) for i, name in enumerate(names)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"{text.name}: the header in line {first.line} has two columns {twice[0]!r}; give each column its own name")
    return _table(text, names, dialect, header=True)


def first_fields(text: Text, delimiter: str) -> list[str]:
    """The fields of the first record; empty if there is none or it cannot be read."""
    record = next(iter(_records(text, Dialect(delimiter, False))), None)
    return record.fields if record else []


def _table(text: Text, names: list[str], dialect: Dialect, header: bool, notes: tuple[str, ...] = ()) -> Table:
    def rows() -> Iterator[Row | BadRow]:
        for record in itertools.islice(_records(text, dialect), int(header), None):
            if record.error:
                yield BadRow(text.name, record.line, record.error)
            elif len(record.fields) != len(names):
                yield BadRow(text.name, record.line, f"{_count(len(record.fields), 'field')} instead of {len(names)}")
            else:
                yield Row(record.line, dict(zip(names, record.fields, strict=True)))

    return Table(text.name, tuple(names), rows, text.digest(), header=header, notes=notes)


def _records(text: Text, dialect: Dialect) -> Iterator[Record]:
    """All records but blank lines. Raises ``UserError`` for a quote that is never closed: it would swallow the rest of the file."""
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
                raise UserError(f"{text.name}: a quote that opens in the record of line {line} is never closed") from None
            last = reader.line_num
            reason = "a carriage return outside of quotes" if "new-line" in str(error) else str(error)
            yield Record(line, [], reason + (f" (up to line {last})" if last > line else ""))
            continue
        if fields:
            yield Record(line, fields)


def _delimiter(text: Text) -> str:
    """The comma if the first records agree on their fields with it, else what they agree on most."""
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


def _quoted(text: Text) -> bool:
    """Whether quotes of a TSV are signs: the whole file reads so, with equally many fields in all records. In texts they seldom do."""
    csv.field_size_limit(LONGEST_FIELD)
    try:
        widths = (len(fields) for fields in csv.reader(lines(text), delimiter="\t", strict=True) if fields)
        first = next(widths, 0)
        return all(width == first for width in widths)
    except csv.Error:
        return False


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
