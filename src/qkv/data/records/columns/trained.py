"""Find the columns of another table that a trained run reads: the columns of its training data, without guessing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from qkv.data.records.model import Role
from qkv.data.records.table import Table
from qkv.system.errors import UserError


def trained_columns(
    table: Table, roles: Sequence[Role], trained: Mapping[str, str], option: Callable[[str], str]
) -> dict[str, str]:
    """Return the column of ``table`` by role, for the ``roles`` with a column in ``trained``, the columns used in
    training.

    A missing role is left out if the table's format defines its column, such as the images of a folder. In a table in
    memory, a column may also have the name of its role. ``option``: function from a role's name to the option that sets
    its column. Raises ``UserError`` for a column that is missing.
    """
    columns: dict[str, str] = {}
    for role in roles:
        column = trained.get(role.name)
        if column is None:
            continue
        if column in table.columns:
            columns[role.name] = column
        elif table.given and role.name in table.columns:
            columns[role.name] = role.name
        elif len(table.defaults.get(role.kind, ())) != 1:
            raise UserError(
                f"{table.name} has no column {column!r}, which the run was trained on; "
                f"name the column to read with {option(role.name)}"
            )
    return columns
