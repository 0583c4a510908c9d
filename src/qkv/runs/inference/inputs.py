"""Read the rows of a table for prediction, as in training but without labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from qkv.data.batching.batch import INPUT
from qkv.data.processors.processor import Encoded, Processor, build_processor
from qkv.data.records.columns.guess import choose
from qkv.data.records.columns.trained import trained_columns
from qkv.data.records.formats import folder_of, table_of
from qkv.data.records.model import Role
from qkv.data.records.table import Row, Table
from qkv.data.records.values import Unusable, Values
from qkv.runs.run import Run
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.registry import task_of_recipe

_QUOTED = 3
"""Maximum number of bad rows quoted in a message."""


class Inputs(NamedTuple):
    """Inputs for prediction, read from a table: ``rows``, the task's inputs; ``kept``, the values of each of these rows
    in all ``columns``; ``notes``, sentences for the user.
    """

    rows: list[dict[str, Any]]
    kept: list[Mapping[str, Any]]
    columns: tuple[str, ...]
    notes: list[str]


def input_kinds(recipe: Recipe) -> dict[str, str]:
    """Return name -> kind of each input from which a run of ``recipe`` predicts; "" if the task itself reads the
    input.
    """
    task = task_of_recipe(recipe)
    kinds = {role.name: role.kind for role in getattr(task, "roles", ())}
    return {name: kinds.get(name) or ("text" if name == "text" else "") for name in task.asks}


def read_inputs(run: Run, source: str, columns: Mapping[str, str], refuse: bool = False) -> Inputs:
    """Read the table in the file ``source`` as inputs for predictions of ``run``; values such as images are encoded
    with its processors.

    ``columns``: input -> column (default: as in training); ``refuse``: raise an error for bad rows instead of skipping
    them. Raises ``UserError`` if the task predicts nothing, the file is not a table, a column of the training is
    missing, or no row is usable.
    """
    recipe, task = run.recipe, task_of_recipe(run.recipe)
    if not task.asks:
        raise UserError(
            f"a model of the task {recipe.task.kind!r} makes no predictions; generate text with 'qkv generate'"
        )
    # Tasks trained on running text have no roles, but still take a text as input.
    by_name = {role.name: role for role in getattr(task, "roles", ())}
    roles = tuple(by_name.get(name) or Role(name, "text", (name, "sentence")) for name in (*task.asks, *task.may_ask))
    trained = {role.name: recipe.data.columns[role.name] for role in roles if role.name in recipe.data.columns}
    trained = {**trained, **columns}
    series = {role.name for role in roles if role.kind == "series"}
    # Several column names form one series; a number as column name means that the table has no header.
    shape = {name: column for name, column in trained.items() if name in series or column.isdecimal()}
    table = table_of(source, recipe.data.changed(format=None, columns=shape), roles, "--data")
    trained = {name: column for name, column in trained.items() if name not in columns}
    learned = trained_columns(table, roles, trained, partial(_option, table))
    # In a table in memory, as in a mapping of inputs, a column named like an optional input is read as that input.
    optional = [role.name for role in roles if role.optional and table.given and role.name in table.columns]
    choice = choose(table, roles, {**{name: name for name in optional}, **learned, **columns}, "--data")
    notes = [*table.notes, *([choice.note] if choice.note else [])]
    return _read(table, roles, choice.columns, notes, refuse, _encoder_of(run))


def _option(table: Table, role: str) -> str:
    """Return the command line option or the argument that sets the column of a role."""
    return f"columns={{{role!r}: NAME}}" if table.given else f"--column {role}=NAME"


def value_columns(run: Run) -> dict[str, Processor]:
    """Return the processors of inputs such as images, by the name that the input has in a row."""
    inputs = (INPUT, *run.recipe.data.inputs)  # omits other processors of the vocabulary, such as the targets' scaler
    processors = {name: build_processor(each) for name, each in run.vocabulary.processors.items() if name in inputs}
    return {processor.role_of(name).name: processor for name, processor in processors.items()}


def _encoder_of(run: Run) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that encodes the values of a row with the run's processors. It raises ``Unusable`` for a value
    that cannot be read, such as a damaged image.
    """
    processors = value_columns(run)

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        # Rows that refer to the training data, for example to nodes of its graph, contain no value to encode.
        encoders = {name: processor for name, processor in processors.items() if name in row}
        return {**row, **{name: Encoded(processor.encode(row[name])) for name, processor in encoders.items()}}

    return encode


def _read(
    table: Table,
    roles: Sequence[Role],
    columns: Mapping[str, str],
    notes: list[str],
    refuse: bool,
    encode: Callable[[dict[str, Any]], dict[str, Any]],
) -> Inputs:
    values = Values(roles, columns, missing=table.missing, folder=folder_of(table))
    inputs = Inputs([], [], table.columns, notes)
    bad: list[str] = []
    for row in table.rows:
        if not isinstance(row, Row):
            bad.append(f"{table.place(row.line)}: {row.reason}")
            continue
        try:
            inputs.rows.append(encode(values(row)))
            inputs.kept.append(row.values)
        except Unusable as error:
            bad.append(f"{table.place(row.line)}: {error}")
    some = "; ".join(bad[:_QUOTED]) + (f"; and {len(bad) - _QUOTED:,} more" if len(bad) > _QUOTED else "")
    if not inputs.rows:
        raise UserError(f"no row of {table.name} can be used: {some}" if bad else f"{table.name} has no rows")
    what = f"{len(bad):,} of {len(bad) + len(inputs.rows):,} rows of {table.name}"
    if bad and refuse:
        raise UserError(f"{what} cannot be used: {some}; correct them, or leave them out")
    if bad:
        notes.append(f"{what} {'has' if len(bad) == 1 else 'have'} no prediction: {some}")
    return inputs
