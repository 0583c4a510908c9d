"""Held-out rows of a table without a validation split: at random, by group, or by time."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from qkv.data.records.duplicates import input_keys, repeated
from qkv.data.records.model import Role
from qkv.data.records.split import HoldOut, hold_out, hold_out_last
from qkv.data.records.table import Row, Table
from qkv.data.records.values import Missing, Unusable
from qkv.spec import data as spec
from qkv.spec.errors import UserError, nearest

Rows = list[dict[str, Any]]


class RowPlace(NamedTuple):
    """Attributes of a row that decide its split: its ``group``, and its ``time`` (a number, or seconds of a date)."""

    group: str
    time: float = 0.0
    dated: bool = False


def check_split(split: spec.HeldOut, tables: Mapping[str, Table], where: str) -> None:
    """Raise ``UserError`` if the column of ``split`` does not exist, or another table has the held-out rows."""
    if split.column is None:
        return
    if "validation" in tables:
        raise UserError(
            f"{where}.split chooses the held-out rows of a table, but a file or the data set has them already; "
            "leave one of them out"
        )
    table = tables["train"]
    if split.column not in table.columns:
        raise UserError(
            f"{where}.split: {table.name} has no column {split.column!r}; {nearest(split.column, table.columns)}"
        )


def place_of(row: Row, split: spec.HeldOut, missing: Collection[str]) -> RowPlace:
    """Group or time of a row. Raises ``Missing`` for an empty cell and ``Unusable`` for an invalid time."""
    if split.column is None:
        return RowPlace(row.group)
    name, value = ("time", row.values.get(split.column)) if split.time else ("group", row.values.get(split.column))
    text = "" if value is None or value != value else str(value).strip()
    if not text or text in missing:
        raise Missing(f"no {name}", name)
    return _timed(text) if split.time else RowPlace(text)


def _timed(text: str) -> RowPlace:
    """Time of a row: a number, or a date or time in ISO 8601, in UTC unless it names another zone."""
    try:
        number = float(text)
        if math.isfinite(number):
            return RowPlace("", number)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
        return RowPlace("", (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp(), True)
    except (ValueError, OverflowError):
        raise Unusable(f"time is {text[:40]!r}, not a number or a date such as 2024-12-31") from None


def hold_out_rows(
    splits: dict[str, Rows], places: Sequence[RowPlace], roles: Sequence[Role], data: spec.Data, table: Table
) -> list[str]:
    """Move validation rows out of ``splits["train"]``, in place; return sentences that describe the split. A shuffle is
    seeded by the content alone.
    """
    rows, label = splits["train"], next((role.name for role in roles if role.kind == "label"), None)
    labels = [row[label] for row in rows] if label else []
    try:
        split, how = _split(rows, labels, places, roles, data, table)
    except UserError as error:
        raise UserError(f"{table.name}: {error}") from None
    known = {labels[i] for i in split.train} if labels and data.split.column else set(labels)
    held = [i for i in split.validation if not labels or labels[i] in known]
    unknown = len(split.validation) - len(held)
    if not held:
        raise UserError(
            f"{table.name}: no held-out row has a label of the training rows; "
            f"{data.split.column!r} separates the labels, so another split is needed"
        )
    splits["train"], splits["validation"] = [rows[i] for i in split.train], [rows[i] for i in held]
    how = how or (f"stratified by {label}" if label else "at random")
    were = "was" if len(held) == 1 else "were"
    notes = [f"{len(held):,} of {len(rows):,} rows {were} held out for validation, {how}"]
    if unknown:
        notes.append(f"{unknown:,} held-out rows of {table.name} have a label that no training row has; left out")
    keys = [] if how.startswith("with no") or data.split.column else input_keys(rows, roles)
    apart = {keys[i] for i in split.train}.isdisjoint(keys[i] for i in held) if keys else False
    copies = repeated(rows, roles) if apart else ""
    return [*notes, f"{table.name}: {copies}"] if copies else notes


def _split(
    rows: Rows, labels: Sequence[str], places: Sequence[RowPlace], roles: Sequence[Role], data: spec.Data, table: Table
) -> tuple[HoldOut, str]:
    """(split, description of a split by group or time, else "")."""
    column, fraction = data.split.column, data.validation_fraction
    if data.split.time:
        if len({place.dated for place in places}) > 1:
            raise UserError(f"the column {column!r} has numbers and dates; use one of them")
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
    found = hold_out(len(rows), fraction, table.digest, labels, groups, inputs)
    return found, "with no context in both splits" if grouped else ""
