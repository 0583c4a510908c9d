"""Input rows for prediction, read from a table as in training, but without labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from qkv.data.processors.processor import build_processor
from qkv.data.records.formats import folder_of, table_of
from qkv.data.records.guess import choose
from qkv.data.records.model import Role
from qkv.data.records.table import Row, Table
from qkv.data.records.values import Unusable, Values
from qkv.spec.errors import UserError
from qkv.spec.recipe import Recipe
from qkv.tasks.registry import task_of_recipe

_QUOTED = 3
"""Maximum number of bad rows quoted in a message."""


class Inputs(NamedTuple):
    """Inputs for prediction, read from a table: ``rows``, the task's inputs; ``kept``, all ``columns`` of each row;
    ``notes``, sentences for the user.
    """

    rows: list[dict[str, Any]]
    kept: list[Mapping[str, Any]]
    columns: tuple[str, ...]
    notes: list[str]


def input_kinds(recipe: Recipe) -> dict[str, str]:
    """Kind of each input that a run of ``recipe`` predicts from; "" for one that its task reads by itself."""
    task = task_of_recipe(recipe)
    known = {role.name: role.kind for role in getattr(task, "roles", ())}
    return {name: known.get(name) or ("text" if name == "text" else "") for name in task.asks}


def read_inputs(recipe: Recipe, source: str, columns: Mapping[str, str], refuse: bool = False) -> Inputs:
    """Read the table in the file ``source`` as inputs for predictions of a run of ``recipe``.

    ``columns``: column of each input (default: as in training, or guessed); ``refuse``: refuse bad rows instead of
    leaving them out. Raises ``UserError`` if the task predicts nothing, the file is not a table, a column is missing,
    or no row is usable.
    """
    task = task_of_recipe(recipe)
    if not task.asks:
        raise UserError(
            f"a model of the task {recipe.task.kind!r} has no answer to predict; generate text with 'qkv generate'"
        )
    # Tasks trained on running text have no roles, but still take a text as input.
    known = {role.name: role for role in getattr(task, "roles", ())}
    roles = tuple(known.get(name) or Role(name, "text", (name, "sentence")) for name in (*task.asks, *task.may_ask))
    series = {role.name: recipe.data.columns.get(role.name) for role in roles if role.kind == "series"}
    several = {name: column for name, column in {**series, **columns}.items() if name in series and column}
    table = table_of(source, recipe.data.changed(format=None, columns=several), roles, "--data")
    learned = {
        role.name: recipe.data.columns[role.name]
        for role in roles
        if recipe.data.columns.get(role.name) in table.columns
    }
    # An input that is optional is used in a table in memory if it has its name, as in a mapping of inputs.
    optional = [role.name for role in roles if role.optional and table.given and role.name in table.columns]
    choice = choose(table, roles, {**{name: name for name in optional}, **learned, **columns}, "--data")
    notes = [*table.notes, *([choice.note] if choice.note else [])]
    return _read(table, roles, choice.columns, notes, refuse, _check_of(recipe))


def _check_of(recipe: Recipe) -> Callable[[Mapping[str, Any]], object]:
    """Function that raises ``Unusable`` for the inputs of a row that cannot be read, such as a damaged image."""
    if recipe.data.processor is None:
        return lambda row: None
    processor = build_processor(recipe.data.processor)
    name = processor.role.name  # absent where rows name parts of the run's own data, such as nodes
    return lambda row: processor.checked(row[name]) if name in row else None


def _read(
    table: Table,
    roles: Sequence[Role],
    columns: Mapping[str, str],
    notes: list[str],
    refuse: bool,
    check: Callable[[Mapping[str, Any]], object],
) -> Inputs:
    values = Values(roles, columns, missing=table.missing, folder=folder_of(table))
    found = Inputs([], [], table.columns, notes)
    bad: list[str] = []
    for row in table.rows:
        if not isinstance(row, Row):
            bad.append(f"{table.place(row.line)}: {row.reason}")
            continue
        try:
            example = values(row)
            check(example)
            found.rows.append(example)
            found.kept.append(row.values)
        except Unusable as error:
            bad.append(f"{table.place(row.line)}: {error}")
    some = "; ".join(bad[:_QUOTED]) + (f"; and {len(bad) - _QUOTED:,} more" if len(bad) > _QUOTED else "")
    if not found.rows:
        raise UserError(f"no row of {table.name} can be used: {some}" if bad else f"{table.name} has no rows")
    what = f"{len(bad):,} of {len(bad) + len(found.rows):,} rows of {table.name}"
    if bad and refuse:
        raise UserError(f"{what} cannot be used: {some}; correct them, or leave them out")
    if bad:
        notes.append(f"{what} {'has' if len(bad) == 1 else 'have'} no answer: {some}")
    return found
