"""Hold out rows of a table without a validation split: at random, by group, or by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qkv.data.cells.stamps import read_stamps
from qkv.data.records.duplicates import input_keys, repeated
from qkv.data.records.model import Role
from qkv.data.records.split import HoldOut, hold_out, hold_out_last
from qkv.data.records.table import Row, Table
from qkv.data.records.values import Missing, Unusable
from qkv.spec import data as spec
from qkv.system.errors import UserError, nearest

Rows = list[dict[str, Any]]


class RowPlace(NamedTuple):
    """Attributes of a row that decide its split: its ``group``, and its ``time`` (a number, or a date in seconds)."""

    group: str
    time: float = 0.0


def check_split(split: spec.HeldOut, tables: Mapping[str, Table], where: str) -> None:
    """Raise ``UserError`` if the column of ``split`` is not in the table, or if the data has a validation split."""
    if split.column is None:
        return
    if "validation" in tables:
        raise UserError(
            f"{where}.split holds out validation rows, but the data already has a validation split; "
            "leave one of them out"
        )
    table = tables["train"]
    if split.column not in table.columns:
        raise UserError(
            f"{where}.split: {table.name} has no column {split.column!r}; {nearest(split.column, table.columns)}"
        )


class RowPlaces:
    """Callable that returns the group or time of a row of a table; all times are read in the form that fits the whole
    column.

    ``notes``: sentences on this form.
    """

    def __init__(self, table: Table, split: spec.HeldOut):
        self._split, self._missing = split, table.missing
        self._times: dict[int, float] = {}
        self.notes: list[str] = []
        rows = [row for row in table.rows if isinstance(row, Row)] if split.time else []
        cells = {row.line: text for row in rows if (text := self._text(row))}
        if cells:
            stamps = read_stamps(list(cells.values()), utc=True)
            self._times = dict(zip(cells, stamps.values.tolist(), strict=True))
            note = stamps.note(list(cells.values()), "") if stamps.readable else ""
            self.notes += [f"{split.time!r}: {note}"] if note else []

    def __call__(self, row: Row) -> RowPlace:
        """Return the group or time of a row. Raises ``Missing`` for an empty cell and ``Unusable`` for an invalid
        time.
        """
        split = self._split
        if split.column is None:
            return RowPlace(row.group)
        text, name = self._text(row), "time" if split.time else "group"
        if not text:
            raise Missing(f"no {name}", name)
        if not split.time:
            return RowPlace(text)
        time = self._times[row.line]
        if time != time:
            raise Unusable(f"time is {text[:40]!r}, not a number or a date such as 2024-12-31, as the others are")
        return RowPlace("", time)

    def _text(self, row: Row) -> str:
        value = row.values.get(self._split.column or "")
        text = "" if value is None or value != value else str(value).strip()
        return "" if text in self._missing else text


def hold_out_rows(
    splits: dict[str, Rows], places: Sequence[RowPlace], roles: Sequence[Role], data: spec.Data, table: Table
) -> list[str]:
    """Move validation rows out of ``splits["train"]``, in place; return sentences that describe the split.

    A random split depends only on the content of the table.
    """
    rows, label = splits["train"], next((role.name for role in roles if role.kind == "label"), None)
    labels = [row[label] for row in rows] if label else []
    try:
        split, how = _split(rows, labels, places, roles, data, table)
    except UserError as error:
        raise UserError(f"{table.name}: {error}") from None
    labels_seen = {labels[i] for i in split.train} if labels and data.split.column else set(labels)
    usable = [i for i in split.validation if not labels or labels[i] in labels_seen]
    unknown = len(split.validation) - len(usable)
    if not usable:
        raise UserError(
            f"{table.name}: no held-out row has a label of the training rows; "
            f"{data.split.column!r} separates the labels, so another split is needed"
        )
    splits["train"], splits["validation"] = [rows[i] for i in split.train], [rows[i] for i in usable]
    how = how or (f"stratified by {label}" if label else "at random")
    were = "was" if len(usable) == 1 else "were"
    notes = [f"{len(usable):,} of {len(rows):,} rows {were} held out for validation, {how}"]
    if unknown:
        notes.append(
            f"{unknown:,} held-out rows of {table.name} have a label that no training row has; they are left out"
        )
    keys = [] if how.startswith("with no") or data.split.column else input_keys(rows, roles)
    apart = {keys[i] for i in split.train}.isdisjoint(keys[i] for i in usable) if keys else False
    copies = repeated(rows, roles) if apart else ""
    return [*notes, f"{table.name}: {copies}"] if copies else notes


def _split(
    rows: Rows, labels: Sequence[str], places: Sequence[RowPlace], roles: Sequence[Role], data: spec.Data, table: Table
) -> tuple[HoldOut, str]:
    """Return (split, description of a split by group, time or context, else "")."""
    column, fraction = data.split.column, data.validation_fraction
    if data.split.time:
        return hold_out_last([place.time for place in places], fraction), f"the last by {column}"
    groups = [place.group for place in places]
    if data.split.group:
        if len(set(groups)) < 2:
            raise UserError(f"all rows have the same {column}, so they cannot be split by it")
        return hold_out(len(rows), fraction, table.digest, groups=groups), f"with no {column} in both splits"
    if len(set(groups)) < 2 and any(role.kind == "answers" for role in roles):
        groups = [str(row.get("context", "")) for row in rows]  # a context in both splits would leak
    grouped = len(set(groups)) > 1
    inputs = () if grouped else input_keys(rows, roles)
    split = hold_out(len(rows), fraction, table.digest, labels, groups, inputs)
    return split, "with no context in both splits" if grouped else ""
