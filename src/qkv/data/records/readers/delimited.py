"""CSV and TSV files (RFC 4180 and usual variants): a header, then one row per record."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple

from qkv.data.corpora.text import TextSource
from qkv.data.records.model import BadRow
from qkv.data.records.readers.headers import SAMPLE, Fields, TableHeader, numbered, read_header, separator_line
from qkv.data.records.table import Row, Table, head, lines
from qkv.system.errors import UserError

DELIMITERS = (",", ";", "\t")
LONGEST_FIELD = 1 << 30
"""Maximum number of characters of a field; the csv module's default of 131,072 is too small for long articles."""

MISSING = frozenset(("NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NULL", "null"))
"""Texts of a whole cell that mean an empty cell, as in other readers of CSV. "None" is not included, because it is a
common label.
"""


class Dialect(NamedTuple):
    """Format of a CSV or TSV file: field delimiter, and whether quotes around a field are parsed (True) or literal
    characters (False).
    """

    delimiter: str
    quoted: bool


def delimited(
    text: TextSource, format: Literal["csv", "tsv"], columns: Iterable[str] = (), header: bool = True
) -> Table:
    """Read a CSV or TSV file as a table.

    If ``columns`` names a column by a number that is not a name in the header, or if ``header`` is False, the file has
    no header: columns are called "1", "2", … and line 1 is a row. Raises ``UserError`` for an empty file or duplicate
    column names.
    """
    records = _reader(text, format)
    first = next(iter(records()), None)
    if first is None:
        raise UserError(f"{text.name} is empty")
    by_number = any(column.isdecimal() and column not in map(str.strip, first.fields) for column in columns)
    if (by_number or not header) and not first.error:
        return _table(text, numbered(len(first.fields), text.name), records, header=False)
    return _table(text, read_header(text.name, records), records, header=True)


def _reader(text: TextSource, format: Literal["csv", "tsv"]) -> Callable[[], Iterable[Fields]]:
    """Return a function that yields the records of a file, without a first line such as ``sep=;`` that names the
    delimiter.
    """
    named = separator_line(next(lines(text), ""))
    if named is not None:
        dialect = Dialect(named, True)
        return lambda: itertools.islice(_records(text, dialect), 1, None)
    return _tab_separated(text) if format == "tsv" else partial(_records, text, Dialect(_delimiter(text), True))


def first_fields(text: TextSource, delimiter: str) -> list[str]:
    """Return the fields of the first record of a delimited file, with quotes taken literally.

    Empty if there is no record or it cannot be read.
    """
    record = next(iter(_records(text, Dialect(delimiter, False))), None)
    return record.fields if record else []


def _table(text: TextSource, first: TableHeader, records: Callable[[], Iterable[Fields]], header: bool) -> Table:
    columns = first.columns

    def rows() -> Iterator[Row | BadRow]:
        for record in itertools.islice(records(), first.before, None):
            cells = None if record.error else first.cells(record.fields)
            if cells is not None:
                yield Row(record.line, dict(zip(columns, cells, strict=True)))
            else:
                counts = f"{_count(len(record.fields), 'field')} instead of {len(first.names)}"
                yield BadRow(text.name, record.line, record.error or counts)

    return Table(text.name, columns, rows, text.digest(), header=header, notes=first.notes, missing=MISSING)


def _records(text: TextSource, dialect: Dialect) -> Iterator[Fields]:
    """Yield all records of a CSV or TSV file except for blank lines.

    Raises ``UserError`` for an unclosed quote, which would absorb the rest of the file.
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
    """Detect the delimiter of a CSV file from its first records.

    It is the delimiter that gives most records the same number of fields as the first record. The comma wins ties with
    the semicolon and the tab. If no delimiter splits the first record, which may be a title, the most frequent number
    of fields above one is used instead of the number of fields of the first record.
    """
    beginning = head(text).splitlines(keepends=True)
    counts = {delimiter: _field_counts(beginning, delimiter) for delimiter in DELIMITERS}
    titled = all(not sizes or sizes[0] == 1 for sizes in counts.values())

    def agreement(delimiter: str) -> float:
        sizes = counts[delimiter]
        several = Counter(count for count in sizes if count > 1)
        if titled or not several:
            return max(several.values(), default=0) / max(1, len(sizes))
        return sizes.count(sizes[0]) / len(sizes) if sizes[0] > 1 else 0.0

    return max(DELIMITERS, key=agreement)


def _field_counts(beginning: Sequence[str], delimiter: str) -> list[int]:
    """Count the fields of each of the first records; return an empty list if the delimiter does not fit."""
    try:
        return [
            len(fields) for fields in itertools.islice(csv.reader(beginning, delimiter=delimiter), SAMPLE) if fields
        ]
    except csv.Error:
        return []


def _tab_separated(text: TextSource) -> Callable[[], Iterable[Fields]]:
    """Return a function that yields the records of a TSV file.

    Quotes are parsed only if all records then have the same number of fields.
    """
    literal = list(_records(text, Dialect("\t", False)))
    if not any('"' in field for record in literal for field in record.fields):
        return lambda: literal
    try:
        rows = list(_records(text, Dialect("\t", True)))
    except UserError:  # a quote that is never closed
        return lambda: literal
    return lambda: rows if _are_alike(rows) else literal


def _are_alike(records: Sequence[Fields]) -> bool:
    """Return True if all rows have the same number of fields.

    The header may lack the cell of an index column or have empty cells at its end, and titles may precede it.
    """
    below = list(itertools.dropwhile(lambda record: record.filled < 2, records)) or list(records)
    header, *rows = [len(record.fields) for record in below]
    widths = set(rows)
    blank = below[0].fields[min(rows, default=header) :]
    fits = not widths or header in {*widths, *(width - 1 for width in widths)} or not any(map(str.strip, blank))
    return len(widths) < 2 and fits and not any(record.error for record in records)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
