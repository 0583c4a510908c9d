"""Inputs of a table with columns of several kinds: a picture or another signal, a text, numbers and categories."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from qkv.choosing.verbs import CELLS
from qkv.data.processors.processor import build_processor, every_recognised
from qkv.data.records.columns.guess import choose
from qkv.data.records.columns.profile import Profile, profiles
from qkv.data.records.formats import table_of
from qkv.data.records.model import Role
from qkv.data.records.named import TABLES
from qkv.data.records.table import Row, Table
from qkv.spec.data import Data
from qkv.spec.processors import Processor, processor_roles
from qkv.spec.signals.cells import Cell
from qkv.spec.tasks import Task as TaskSpec
from qkv.spec.tokenizers import WordPiece
from qkv.system.errors import UserError
from qkv.tasks.inputs import TEXT
from qkv.tasks.registry import build_task

_TELLS = 0.98
"""Share of the rows whose label a category tells from which on it is not guessed as an input."""
_FEWEST, _REPEATED = 20, 4
_SENTENCE = 3
"""Minimum number of words of a text, on average."""


class MixedInputs(NamedTuple):
    """Inputs of a table by name, the column of each, and a sentence on columns that are left out, "" if none is."""

    data: Data
    note: str = ""


def with_inputs(data: Data, task: TaskSpec, guess: bool = True) -> MixedInputs:
    """Return ``data`` with the several inputs that the table has, by name; unchanged if it has one.

    Columns that are named decide. If none is named and the table has a column of signals, such as pictures, a column of
    texts and those of numbers and categories are read beside it. Raises ``UserError`` for an unknown column.
    """
    if (
        data.inputs
        or data.processor is not None
        or not (task.joins_inputs and task.reads_signals)
        or data.source in TABLES
    ):
        return MixedInputs(data)
    signals = [name for name in processor_roles() if name in data.columns]
    several = len(signals) + (TEXT.name in data.columns) + (CELLS in data.columns)
    if several > 1 or CELLS in data.columns:
        return MixedInputs(_told(data, task, signals))
    return _guessed(data, task) if guess and not several and "pair" not in data.columns else MixedInputs(data)


def _opened(data: Data, roles: Sequence[Role]) -> Table:
    return table_of(data.source, data, roles, "data.source")


def _told(data: Data, task: TaskSpec, signals: Sequence[str]) -> Data:
    """Return the data with the inputs whose columns are named."""
    columns = dict(data.columns)
    cells = [name.strip() for name in columns.pop(CELLS, "").split(",") if name.strip()]
    table = _opened(data.changed(columns=columns), _roles(data, task))
    unknown = next((name for name in cells if name not in table.columns), None)
    if unknown is not None:
        raise UserError(f"--cells: {table.name} has no column {unknown!r}; its columns are {', '.join(table.columns)}")
    named_twice = next((role for role, name in columns.items() if name in cells), None)
    if named_twice is not None:
        raise UserError(f"--cells: the column {columns[named_twice]!r} is already {named_twice}; name it once")
    kinds = {build_processor(each).role.name: each for each in _kinds(data, columns)}
    return _with(data, {name: kinds[name] for name in signals}, columns, TEXT.name in columns, cells)


def _kinds(data: Data, columns: Mapping[str, str]) -> Iterable[Processor]:
    opened = data.changed(columns={})
    return every_recognised(data.source, lambda: _opened(opened, ()), columns)


def _guessed(data: Data, task: TaskSpec) -> MixedInputs:
    """Return the data with the inputs that the contents of the columns suggest."""
    kinds = [*every_recognised(data.source, lambda: _table_or_none(data, task))][:1]
    table = _table_or_none(data, task) if kinds else None
    if table is None or table.defaults:
        return MixedInputs(data)
    processor, target = build_processor(kinds[0]), _target(task)
    chosen = choose(table, (processor.role, target), data.columns, reserved=data.split.column).columns
    free_columns = {
        name: each
        for name, each in profiles(table).items()
        if name not in (*chosen.values(), data.split.column) and each.filled and not each.is_id
    }
    text = _text(free_columns.values())
    cells = [name for name, each in free_columns.items() if name != text and (each.is_number or each.is_label)]
    telling = [name for name in cells if _tells(table, name, chosen[target.name])]
    cells = [name for name in cells if name not in telling]
    if not text and not cells:
        return MixedInputs(data)
    columns = {**data.columns, **chosen, **({TEXT.name: text} if text else {})}
    return MixedInputs(_with(data, {processor.role.name: kinds[0]}, columns, bool(text), cells), _left_out(telling))


def _left_out(telling: Sequence[str]) -> str:
    if not telling:
        return ""
    names, verbs = (
        " and ".join(map(repr, telling)),
        ("says", "is", "it") if len(telling) == 1 else ("say", "are", "them"),
    )
    says, is_read, it = verbs
    return f"{names} {says} the target of nearly every row and {is_read} not read; --cells reads {it}."


def _table_or_none(data: Data, task: TaskSpec) -> Table | None:
    try:
        return _opened(data, _roles(data, task))
    except UserError:  # raised again when the table is read for the task
        return None


def _roles(data: Data, task: TaskSpec) -> tuple[Role, ...]:
    return build_task(task, data.changed(columns={})).roles  # type: ignore[attr-defined]


def _target(task: TaskSpec) -> Role:
    return build_task(task).target  # type: ignore[attr-defined]


def _text(columns: Iterable[Profile]) -> str:
    """Return the column with the longest texts of several words; "" if there is none."""
    texts = [each for each in columns if each.fits("text") and not each.is_label and not each.lists]
    longest = max(texts, key=lambda each: each.length, default=None)
    return "" if longest is None or longest.length < 2 * _SENTENCE else longest.name


def _tells(table: Table, name: str, target: str) -> bool:
    """Return True if the values of the column ``name`` say the target of nearly all rows, as a finer label does. Values
    of which each occurs in fewer than ``_REPEATED`` rows on average say nothing.
    """
    by_category = defaultdict[str, Counter[str]](Counter)
    for row in table.rows:
        if isinstance(row, Row):
            by_category[str(row.values.get(name))][str(row.values.get(target))] += 1
    rows = sum(counts.total() for counts in by_category.values())
    right = sum(max(counts.values()) for counts in by_category.values())
    labels = {label for counts in by_category.values() for label in counts}
    repeated = rows >= max(_FEWEST, _REPEATED * len(by_category))
    return repeated and len(labels) > 1 and right >= _TELLS * rows


def _with(
    data: Data, signals: Mapping[str, Processor], columns: Mapping[str, str], text: bool, cells: Sequence[str]
) -> Data:
    """Return the data with inputs in the order of a row: signals, cells, then the text."""
    inputs, names = dict[str, Any](signals), dict(columns)
    for column in cells:
        name = _identifier(column, {*inputs, *columns, *processor_roles(), TEXT.name})
        inputs[name], names[name] = Cell(), column
    if text:
        inputs[TEXT.name] = WordPiece()
    return data.changed(inputs=inputs, columns=names)


def _identifier(column: str, used: set[str]) -> str:
    """Return a name for the input of a column: letters, digits and _, not one of ``used``."""
    name = re.sub(r"\W+", "_", column).strip("_").lower()
    name = name if name.isidentifier() and name != "input" else f"column_{name}".rstrip("_")
    while name in used:
        name += "_"
    return name
