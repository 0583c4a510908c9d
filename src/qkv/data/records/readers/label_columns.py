"""Read several labels of a row from columns of 0 and 1, one column per label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qkv.data.records.columns.profile import plain, profiles
from qkv.data.records.model import BadRow, Role
from qkv.data.records.readers.series_tables import TO, named_columns, range_of
from qkv.data.records.table import Row, Table
from qkv.data.records.values import is_nan
from qkv.system.errors import UserError

LABELS = "labels"
"""Kind of the roles whose values are sets of labels."""
_YES = frozenset(("1", "1.0", "true", "yes", "y", "x"))
_NO = frozenset(("0", "0.0", "false", "no", "n", ""))
_UNKNOWN = frozenset(("-1", "-1.0"))
"""Cell values that mean that it is unknown whether a row has the label."""


def with_labels(table: Table, roles: Sequence[Role], columns: Mapping[str, str], option: str) -> Table:
    """Join columns of 0 and 1, named after the labels, to one column of lists for a role of several labels.

    ``columns``: columns by role; the labels may be several columns, as in "toxic,insult" or "toxic..insult". Otherwise,
    all columns of 0 and 1 are labels, unless a column has the name of the role. Raises ``UserError`` for unknown
    columns, and for columns in ``columns`` that hold other values.
    """
    role = next((role for role in roles if role.kind == LABELS), None)
    if role is None:
        return table
    setting = columns.get(role.name)
    if setting is not None:
        if setting in table.columns or not ("," in setting or TO in setting):
            return table
        return _joined(table, setting, named_columns(table, setting, f"{option}.{role.name}"))
    names = {plain(name) for name in (role.name, *role.names)}
    if table.defaults.get(LABELS) or any(plain(column) in names for column in table.columns):
        return table
    flags = [
        name
        for name, each in profiles(table).items()
        if each.is_flag and not each.is_id and name not in columns.values()
    ]
    if len(flags) < 2:
        return table
    note = f"the {len(flags)} columns of 0 and 1 {range_of(table, flags)!r} are taken as {role.name} (guessed)"
    return _joined(table, range_of(table, flags), flags, note)


def _joined(table: Table, name: str, columns: Sequence[str], note: str = "") -> Table:
    """Replace ``columns`` of a table by one column ``name`` of lists."""

    def parse() -> Iterator[Row | BadRow]:
        for row in table.rows:
            yield _row(row) if isinstance(row, Row) else row

    def _row(row: Row) -> Row | BadRow:
        cells = {column: _cell(row.values.get(column), table.missing) for column in columns}
        wrong = next((column for column, cell in cells.items() if cell not in _YES | _NO | _UNKNOWN), None)
        if wrong is not None:
            reason = f"{wrong} is {str(row.values.get(wrong))[:40]!r}, but a column of a label holds only 0 and 1"
            return BadRow(row.file or table.name, row.line, reason)
        blank = written and all(cell == "" for cell in cells.values())
        unknown = blank or any(cell in _UNKNOWN for cell in cells.values())
        labels = None if unknown else [column for column, cell in cells.items() if cell in _YES]
        return row._replace(values={**{key: row.values[key] for key in rest if key in row.values}, name: labels})

    # If the table has cells that mean "no", a row of empty cells was not labelled; otherwise it has none of the labels.
    written = any(
        _cell(row.values.get(column), table.missing) in _NO - {""}
        for row in table.rows
        if isinstance(row, Row)
        for column in columns
    )
    rest = [column for column in table.columns if column not in set(columns)]
    joined = replace(
        table,
        columns=(*rest, name),
        parse=parse,
        defaults={**table.defaults, LABELS: (name,)},
        notes=(*table.notes, *([note] if note else [])),
    )
    if not any(isinstance(row, Row) for row in joined.rows) and table.rows:
        raise UserError(f"{table.name}: the columns {name!r} do not hold labels: {_first(joined)}")
    return joined


def _first(table: Table) -> str:
    return next((row.reason for row in table.rows if isinstance(row, BadRow)), "there is no row")


def _cell(value: Any, missing: frozenset[str]) -> str:
    """Return a cell as lower-case text, "" if it is empty."""
    if value is None or is_nan(value):
        return ""
    text = str(value).strip()
    return "" if text in missing else text.casefold()
