"""Open a table of examples: find and read it, choose columns, count bad rows, hold out a validation split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from qkv.data.cells.numbers import NumberForm, is_empty, read_numbers, too_many
from qkv.data.reading import identity_of_data, read_once
from qkv.data.records.columns.guess import ColumnChoice, choose
from qkv.data.records.columns.trained import trained_columns
from qkv.data.records.columns.variants import variants
from qkv.data.records.conversations.check import ConversationCheck, check_any_column, check_columns
from qkv.data.records.duplicates import shared
from qkv.data.records.formats import folder_of, split_tables, table_of
from qkv.data.records.held_out import RowPlace, RowPlaces, check_split, hold_out_rows
from qkv.data.records.model import BadRow, Records, Role
from qkv.data.records.named import TABLES, named_tables
from qkv.data.records.table import Row, Table
from qkv.data.records.values import Missing, Unusable, Values, without_repeats
from qkv.spec import data as spec
from qkv.system.errors import UserError

SHOWN = 3
"""Maximum number of bad rows quoted in a message."""
VERSION = 2
"""Version of the reader; part of the digest."""


class Read(NamedTuple):
    """Contents of one table: examples, group or time of each example (for splitting), unusable rows, sentences for the
    user, and number formats by role.
    """

    examples: list[dict[str, Any]]
    places: list[RowPlace]
    bad: list[BadRow]
    notes: list[str]
    forms: dict[str, NumberForm]


@read_once(lambda data, roles, where="data": (identity_of_data(data), tuple(roles)))
def open_records(data: spec.Data, roles: Sequence[Role], where: str = "data") -> Records:
    """Read the examples of ``data`` as values of the task's ``roles``, in splits.

    ``data.source``: a named data set, a file, or two texts joined by |. ``data.validation`` and ``data.test``: further
    files. Without a validation split, a fraction ``validation_fraction`` of the source is held out: by the group or
    time of ``data.split``, by article for questions on articles, else stratified by label. ``where``: path of ``data``
    in the spec, for messages.

    Raises ``UserError`` for a source that is not a table, for missing or ambiguous columns, for bad rows if
    ``data.bad_rows`` is "refuse", and if more than half of the rows of a table are bad.
    """
    tables = _tables(data, roles, where)
    check_split(data.split, tables, where)
    choice = choose(tables["train"], roles, data.columns, where, data.split.column)
    check_columns(tables["train"], roles, choice.columns, where)
    notes = [note for table in tables.values() for note in table.notes] + ([choice.note] if choice.note else [])
    splits: dict[str, list[dict[str, Any]]] = {}
    bad: list[BadRow] = []
    places: list[RowPlace] = []
    forms: dict[str, NumberForm] = {}
    for split, table in tables.items():
        settings = data if split == "train" else data.changed(split=spec.HeldOut())
        read = _read(table, roles, choice, settings, where, ConversationCheck(roles, choice.columns))
        splits[split] = read.examples
        places, forms = (read.places, read.forms) if split == "train" else (places, forms)
        bad += read.bad
        notes += read.notes
    if "validation" not in splits:
        notes += hold_out_rows(splits, places, roles, data, tables["train"])
    notes += [*_shared(splits, roles), *_single(splits["train"], roles, tables["train"].name)]
    notes += variants([row for rows in splits.values() for row in rows], roles, tables["train"].name)
    splits = {name: splits[name] for name in ("train", "validation", "test") if name in splits}
    digest = _digest(data, roles, tables, choice, forms)
    return Records(data.source, splits, choice.columns, tuple(bad), digest, tuple(notes), _decimal(forms))


def open_rows(data: spec.Data, roles: Sequence[Role], source: str, split: str) -> Records:
    """Read all rows of the file ``source`` as the single split ``split``, with the settings ``data`` of a trained run.

    The format is detected again if the extension differs. Raises ``UserError`` like ``open_records``, and for a column
    that ``data`` names and the file lacks.
    """
    if source in TABLES:
        raise UserError(
            f"{source!r} is a named data set with its own splits; name a file, all of whose rows are evaluated"
        )
    alike = PurePath(source).suffix == PurePath(data.source).suffix
    data = data.changed(
        source=source, validation=None, test=None, split=spec.HeldOut(), format=data.format if alike else None
    )
    table = table_of(source, data, roles, "data")
    choice = choose(table, roles, trained_columns(table, roles, data.columns, "data.columns.{}=NAME".format))
    check_any_column(table, roles, choice.columns, "data")
    read = _read(table, roles, choice, data, "data", ConversationCheck((), {}))
    notes = [*table.notes]
    notes += [*([choice.note] if choice.note else []), *read.notes]
    return Records(source, {split: read.examples}, choice.columns, tuple(read.bad), table.digest, tuple(notes))


def _tables(data: spec.Data, roles: Sequence[Role], where: str) -> dict[str, Table]:
    if data.source in TABLES:
        if data.format:
            raise UserError(
                f"{where}.format: {data.source!r} is a named data set of known format; leave the format out"
            )
        tables = named_tables(data.source)
    else:
        tables = split_tables(data.source, data, roles, f"{where}.source", tuple(TABLES))
    for split, source in (("validation", data.validation), ("test", data.test)):
        if source is not None:
            tables[split] = table_of(source, data, roles, f"{where}.{split}")
    return tables


def _read(
    table: Table, roles: Sequence[Role], choice: ColumnChoice, data: spec.Data, where: str, check: ConversationCheck
) -> Read:
    for role, column in choice.columns.items():
        if column not in table.columns:
            raise UserError(
                f"{table.name} has no column {column!r}, which is used as {role}; "
                f"its columns are {', '.join(table.columns)}"
            )
    separator = data.label_separator or choice.separator
    forms = number_forms(table, roles, choice.columns, data, where)
    values = Values(roles, choice.columns, table.extra, table.missing, separator, folder_of(table), forms)
    notes = [note for role, form in forms.items() if (note := form.note(choice.columns[role]))]
    places = RowPlaces(table, data.split)
    read = Read([], [], [], [*notes, *places.notes], forms)
    for row in table.rows:
        if isinstance(row, Row):
            try:
                example, place = values(row), places(row)
                check(example)
                read.examples.append(example)
                read.places.append(place)
            except Unusable as error:
                missing = error.role if isinstance(error, Missing) else ""
                read.bad.append(BadRow(row.file or table.name, row.line, str(error), missing))
        else:
            read.bad.append(row)
    _judge(table, read, data, where, roles)
    read.notes.extend(f"{table.name}: {note}" for note in [*values.notes(), *check.notes()])
    return read


def number_forms(
    table: Table, roles: Sequence[Role], columns: Mapping[str, str], data: spec.Data, where: str
) -> dict[str, NumberForm]:
    """Return the number format of each column of numbers.

    Raises ``UserError`` for a column that can be read in two ways, and for a column in which more than a small fraction
    of the cells holds no number.
    """
    forms: dict[str, NumberForm] = {}
    for role in (role for role in roles if role.kind == "number" and role.name in columns):
        name = columns[role.name]
        rows = [row for row in table.rows if isinstance(row, Row)]
        cells = [row.values.get(name) for row in rows]
        read = read_numbers(cells, data.decimal, table.missing)
        if read.form.question:
            raise UserError(f"{table.name}: {read.form.doubt(name, f'{where}.decimal')}")
        if too_many(len(read.wrong), sum(not is_empty(cell) for cell in cells)):
            first = read.wrong[0]
            raise UserError(
                f"{len(read.wrong):,} of {len(cells):,} cells of the column {name!r} of {table.name} are not numbers, "
                f"such as {str(cells[first])[:40]!r} in {table.place(rows[first].line)}; correct them, leave them "
                f"empty, or name another column with {where}.columns"
            )
        forms[role.name] = read.form
    return forms


def _judge(table: Table, read: Read, data: spec.Data, where: str, roles: Sequence[Role]) -> None:
    """Note the skipped rows of a table, or raise ``UserError``.

    It is raised if ``data`` refuses bad rows, if no row is left, and if more than half of the rows are bad for another
    reason than an empty cell, since the format is then probably wrong.
    """
    count = len(read.bad) + len(read.examples)
    if not count:
        raise UserError(f"{table.name} has no rows{' after its header' if table.header else ''}")
    bad = [row for row in read.bad if not row.missing]
    if 2 * len(bad) > count:
        quote = _quoted(bad, count, table)
        raise UserError(
            f"{quote[0]} cannot be used, more than half: {quote[1]}; check {where}.format and {where}.columns"
        )
    if read.bad and data.bad_rows == "refuse":
        what, some = _quoted(read.bad, count, table)
        raise UserError(f"{what} cannot be used: {some}; correct them, or skip them with {where}.bad_rows=skip")
    if bad:
        what, some = _quoted(bad, count, table)
        read.notes.append(f"{what} {'was' if len(bad) == 1 else 'were'} skipped: {some}")
    read.notes.extend(_empty(read.bad, count, table, roles))
    if not read.examples:
        raise UserError(f"no row of {table.name} can be used: {'; '.join(read.notes)}; check {where}.columns")


def _quoted(bad: Sequence[BadRow], count: int, table: Table) -> tuple[str, str]:
    """Return (number of bad rows out of ``count``, the first bad rows with their reasons), as text."""
    reasons = without_repeats([row.reason for row in bad[:SHOWN]])
    some = "; ".join(f"{table.place(row.line)}: {reason}" for row, reason in zip(bad, reasons, strict=False))
    some += f"; and {len(bad) - SHOWN:,} more" if len(bad) > SHOWN else ""
    return f"{len(bad):,} of {count:,} rows of {table.name}", some


def _empty(bad: Sequence[BadRow], count: int, table: Table, roles: Sequence[Role]) -> list[str]:
    """Return one sentence per role on the rows that were left out because the cell of this role is empty."""
    lists = {role.name for role in roles if role.kind == "labels"}
    by_role: dict[str, list[int]] = {}
    for row in bad:
        if row.missing:
            by_role.setdefault(row.missing, []).append(row.line)
    return [
        f"{len(lines):,} of {count:,} rows of {table.name} {'has' if len(lines) == 1 else 'have'} no {role} and "
        f"{'was' if len(lines) == 1 else 'were'} left out (first: {table.place(lines[0])})"
        + (f"; write [] in the cell of a row without {role}" if role in lists else "")
        for role, lines in by_role.items()
    ]


def _shared(splits: dict[str, list[dict[str, Any]]], roles: Sequence[Role]) -> list[str]:
    """Return sentences on inputs of the training split that also occur in other splits."""
    notes = (shared(rows, split, splits["train"], roles) for split, rows in splits.items() if split != "train")
    return [note for note in notes if note]


def _single(rows: Sequence[dict[str, Any]], roles: Sequence[Role], name: str) -> list[str]:
    """Return a sentence for a column of several labels if no row has more than one, which suggests a wrong
    separator.
    """
    return [
        f"no row of {name} has more than one of the {role.name}; if cells hold several, set data.label_separator to "
        "the text between them"
        for role in roles
        if role.kind == "labels" and all(len(row[role.name]) < 2 for row in rows)
    ]


def _decimal(forms: Mapping[str, NumberForm]) -> spec.Decimal | None:
    """Return the decimal mark of the columns of numbers; None if no cell determines it."""
    return next(("comma" if form.decimal == "," else "point" for form in forms.values() if form.shows), None)


def _digest(
    data: spec.Data,
    roles: Sequence[Role],
    tables: dict[str, Table],
    choice: ColumnChoice,
    forms: Mapping[str, NumberForm],
) -> str:
    """Hash the contents of all files and all settings that affect how the examples are read from them."""
    content = {split: [table.digest, table.columns, table.header] for split, table in tables.items()}
    fraction = None if "validation" in tables else data.validation_fraction
    parts = [
        VERSION,
        content,
        [(role.name, role.kind) for role in roles if role.name in choice.columns],
        choice.columns,
        data.format,
        fraction,
        *([data.split.essential()] if data.split.column else []),
        *([data.label_separator or choice.separator] if choice.separator else []),
        *([role, form[:3]] for role, form in forms.items() if form[:3] != NumberForm()[:3]),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
