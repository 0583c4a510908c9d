"""Read the header of a delimited file as spreadsheets write it: titles above it, unnamed columns, an index column."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from qkv.data.cells.numbers import like_number
from qkv.system.errors import UserError

SAMPLE = 100
"""Number of records that are examined to recognise titles and an index column."""
UNNAMED = "Unnamed: {}"
"""Name given to an unnamed column, with its index counted from 0, as in pandas."""
_SEPARATOR = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE | re.DOTALL)
_TITLES = 10
"""Maximum number of lines above a header."""
_LONGEST = 60
"""Maximum number of characters of a name in a header below a title."""


class Fields(NamedTuple):
    """Record of a CSV or TSV file: number of its first line, and its fields. ``error``: reason why it could not be
    read.
    """

    line: int
    fields: list[str]
    error: str = ""

    @property
    def filled(self) -> int:
        """Number of fields that are not blank."""
        return sum(bool(field.strip()) for field in self.fields)


class TableHeader(NamedTuple):
    """Columns of a delimited file.

    ``names``: names of all fields of a record; ``kept``: indices of the fields that are columns; ``before``: number of
    records before the first row; ``notes``: sentences for the user.
    """

    names: tuple[str, ...]
    kept: tuple[int, ...]
    before: int
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.names[i] for i in self.kept)

    def cells(self, fields: Sequence[str]) -> list[str] | None:
        """Return the cells of a record by column; None if it has another number of fields.

        Empty fields at the end are ignored, and so are the fields of columns without a name and values.
        """
        size = len(fields)
        if size > len(self.names) and not any(field.strip() for field in fields[len(self.names) :]):
            size = len(self.names)
        if size > len(self.names) or size <= max(self.kept, default=-1):
            return None
        return [fields[i] for i in self.kept]


def separator_line(first_line: str) -> str | None:
    """Return the delimiter that the first line of a file names for spreadsheets, as in ``sep=;``; None if it names
    none.
    """
    match = _SEPARATOR.fullmatch(first_line)
    return match[1] if match else None


def numbered(count: int, name: str) -> TableHeader:
    """Return the columns "1" to ``count`` for a file without a header."""
    note = f"{name} has no header: its first line is read as a row, and its columns are called 1 to {count}"
    return TableHeader(tuple(str(i + 1) for i in range(count)), tuple(range(count)), 0, (note,))


def read_header(name: str, records: Callable[[], Iterable[Fields]]) -> TableHeader:
    """Read the header of the file ``name``: the first record that is not a title.

    Columns without a name are called "Unnamed: 0" and so on, and left out if they hold no value. If all rows have one
    field more than the header and begin with a whole number, this first field is an index column without a name. Raises
    ``UserError`` for a header that cannot be read, or names a column twice.
    """
    sample = list(itertools.islice(records(), SAMPLE))
    titles = _titles(sample)
    first = sample[titles]
    if first.error:
        raise UserError(f"{name}: the header in line {first.line} cannot be read: {first.error}")
    names = [cell.strip() for cell in first.fields]
    twice = next((cell for cell in names if cell and names.count(cell) > 1), None)
    if twice is not None:
        raise UserError(
            f"{name}: the header in line {first.line} has two columns {twice!r}; give each column its own name"
        )
    notes = [f"the header of {name} is in line {first.line}; ignored: {_lines(titles)} above it"] if titles else []
    if _has_index(len(names), sample[titles + 1 :]):
        names.insert(0, "")
    unnamed = [i for i, cell in enumerate(names) if not cell]
    for i in unnamed:
        names[i] = next(UNNAMED.format(k) for k in itertools.count(i) if UNNAMED.format(k) not in names)
    empty = _empty(unnamed, records, titles + 1) if unnamed else set[int]()
    result = TableHeader(tuple(names), tuple(i for i in range(len(names)) if i not in empty), titles + 1)
    return result._replace(notes=(*notes, *_column_notes(name, result, [i for i in unnamed if i not in empty])))


def _lines(count: int) -> str:
    return "the line" if count == 1 else f"the {count} lines"


def _column_notes(name: str, header: TableHeader, unnamed: Sequence[int]) -> list[str]:
    """Return sentences on the columns without a name: those that are ignored, and those that hold values."""
    empty = len(header.names) - len(header.kept)
    notes = []
    if empty:
        what = "1 column" if empty == 1 else f"{empty} columns"
        has = "has" if empty == 1 else "have"
        notes.append(f"{what} of {name} {has} neither a name nor a value and {'is' if empty == 1 else 'are'} ignored")
    if unnamed:
        called = ", ".join(f"column {i + 1} is called {header.names[i]!r}" for i in unnamed[:3])
        more = f" and {len(unnamed) - 3} more" if len(unnamed) > 3 else ""
        notes.append(f"{name} has columns without a name, which are never chosen automatically: {called}{more}")
    return notes


def _empty(unnamed: Sequence[int], records: Callable[[], Iterable[Fields]], before: int) -> set[int]:
    """Return the indices in ``unnamed`` of columns without any value."""
    empty = set(unnamed)
    for record in itertools.islice(records(), before, None):
        empty -= {i for i in empty if i < len(record.fields) and record.fields[i].strip()}
        if not empty:
            break
    return empty


def _has_index(width: int, rows: Sequence[Fields]) -> bool:
    """Return True if every row has one field more than the header and begins with a different whole number."""
    numbers = [row.fields[0].strip() for row in rows if len(row.fields) == width + 1]
    unique = len(set(numbers)) == len(numbers) == len(rows) > 0
    return unique and all(number.isdecimal() for number in numbers) and any(row.fields[-1].strip() for row in rows)


def _titles(sample: Sequence[Fields]) -> int:
    """Count the records above the header.

    These records have at most one non-empty field, and the record after them is clearly a header.
    """
    count = next((i for i, record in enumerate(sample[:_TITLES]) if record.error or record.filled > 1), 0)
    if count == 0 or sample[count].error:
        return 0
    header, rows = sample[count], sample[count + 1 :]
    if all(record.filled == 0 for record in sample[:count]):
        return count
    padded = len(sample[0].fields) > 1
    apart = header.line > sample[count - 1].line + 1
    looks = _is_header([cell.strip() for cell in header.fields], rows, strict=not apart)
    return count if looks and (padded or apart or header.filled == len(header.fields)) else 0


def _is_header(cells: Sequence[str], rows: Sequence[Fields], strict: bool) -> bool:
    """Return True if ``cells`` are distinct short names that do not occur in their columns below.

    ``strict``: also require a column of numbers, or a column with few distinct values.
    """
    named = [cell for cell in cells if cell]
    if len(set(named)) < len(named) or any(like_number(cell) or len(cell) > _LONGEST for cell in named):
        return False
    columns = [[row.fields[i].strip() for row in rows if i < len(row.fields)] for i in range(len(cells))]
    if any(cell in column for cell, column in zip(cells, columns, strict=True) if cell):
        return False
    return bool(rows) and (not strict or any(_is_plain(column) for column in columns))


def _is_plain(column: Sequence[str]) -> bool:
    """Return True if the values of a column are numbers, or are often repeated like labels."""
    filled = [cell for cell in column if cell]
    numbers = sum(like_number(cell) for cell in filled)
    return bool(filled) and (numbers == len(filled) or len(set(filled)) <= len(filled) // 2)
