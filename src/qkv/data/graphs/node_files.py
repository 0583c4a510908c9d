"""Read a graph from two tables, one of nodes and one of edges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv.data.cells.numbers import number_form
from qkv.data.corpora.text import TextSource
from qkv.data.records.model import BadRow
from qkv.data.records.readers.delimited import delimited
from qkv.data.records.table import Row, Table
from qkv.system.errors import UserError, nearest

_NAMES = {
    "node": ("node", "id", "node_id", "name"),
    "label": ("label", "class", "target", "category", "y"),
    "split": ("split", "part", "set", "fold"),
}
_ENDS = {
    "source": ("source", "src", "from", "a", "node1", "citing"),
    "target": ("target", "dst", "to", "b", "node2", "cited"),
}
_MOST_VALUES = 100
"""Maximum number of different texts in a column that is read as categories."""
_SHOWN = 3


class NodeFiles(NamedTuple):
    """Graph from two tables. parts: split of each node, "" if the table names none; labels: None where the cell is
    empty.
    """

    graph: dict[str, Any]
    names: tuple[str, ...]
    labels: tuple[str | None, ...]
    parts: tuple[str, ...]
    notes: tuple[str, ...]


def read_edge_file(
    edges: TextSource, columns: Mapping[str, str], bad_rows: str = "skip"
) -> tuple[tuple[str, ...], np.ndarray, list[str]]:
    """Read a graph from a table of edges only; return (names of the nodes in order, edges (E, 2), sentences for the
    user).
    """
    table = _table(edges)
    source, target = _ends(table, columns)
    rows = [row.values for row in table.rows if isinstance(row, Row)]
    names = dict.fromkeys(_cell(row, column) for row in rows for column in (source, target))
    node_names = tuple(name for name in names if name)
    if not node_names:
        raise UserError(f"{table.name} has no edge")
    pairs, notes = _pairs(table, {name: i for i, name in enumerate(node_names)}, columns, bad_rows)
    return node_names, pairs, notes


def read_node_files(
    nodes: TextSource, edges: TextSource, columns: Mapping[str, str], bad_rows: str = "skip", labelled: bool = True
) -> NodeFiles:
    """Read a table of nodes and one of edges, in CSV or TSV.

    Columns of nodes: name, label, optionally split. The other columns are features: numbers, or categories with at most
    100 different texts. Columns of edges: names of source and target. ``columns``: column by role (node, label, split,
    source, target); default: guessed. An edge to an unknown node is skipped and reported, or refused if ``bad_rows`` is
    "refuse". ``labelled``: False if there may be no column of labels.
    """
    table = _table(nodes)
    rows = [row.values for row in table.rows if isinstance(row, Row)]
    node = _column(table, "node", columns, table.columns[0])
    label = _column(table, "label", columns, None if labelled else "")
    split = _column(table, "split", columns, "")
    names = tuple(_cell(row, node) for row in rows)
    _check_names(names, table, node)
    notes = _skipped(table)
    features, feature_notes = _features(rows, [name for name in table.columns if name not in (node, label, split)])
    pairs, more = _pairs(_table(edges), {name: i for i, name in enumerate(names)}, columns, bad_rows)
    graph: dict[str, Any] = {"num_nodes": len(names), "edges": pairs}
    if features is not None:
        graph["features"] = features
    labels = tuple((_cell(row, label) if label else None) or None for row in rows)
    parts = tuple(_cell(row, split) if split else "" for row in rows)
    return NodeFiles(graph, names, labels, parts, (*notes, *feature_notes, *more))


def _table(text: TextSource) -> Table:
    ending = text.name.lower().removesuffix(".gz").rpartition(".")[2]
    return delimited(text, "tsv" if ending in ("tsv", "tab") else "csv")


def _cell(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    return "" if value is None else str(value).strip()


def _column(table: Table, role: str, columns: Mapping[str, str], default: str | None) -> str:
    """Return the column of a role: the column in ``columns``, else the column with a usual name, else ``default``.

    Raises ``UserError`` if no column is found and ``default`` is None.
    """
    setting = columns.get(role)
    if setting is not None:
        if setting not in table.columns:
            sentence = f"data.columns: {table.name} has no column {setting!r}"
            raise UserError(f"{sentence}; {nearest(setting, table.columns)}")
        return setting
    names = {**_NAMES, **_ENDS}[role]
    match = next((column for name in names for column in table.columns if column.strip().lower() == name), default)
    if match is None:
        sentence = f"{table.name} has no column {role!r}; its columns are {', '.join(table.columns)}"
        raise UserError(f"{sentence}; set data.columns.{role} to one of them")
    return match


def _check_names(names: Sequence[str], table: Table, column: str) -> None:
    if not names:
        raise UserError(f"{table.name} has no node")
    seen: set[str] = set()
    for name in names:
        if not name or name in seen:
            what = f"holds {name!r} twice" if name else "has an empty cell"
            raise UserError(
                f"{table.name}: the column {column!r} {what}, but it names the nodes; see data.columns.node"
            )
        seen.add(name)


def _skipped(table: Table) -> list[str]:
    bad = [row for row in table.rows if isinstance(row, BadRow)]
    some = "; ".join(f"line {row.line}: {row.reason}" for row in bad[:_SHOWN])
    return [f"{len(bad):,} rows of {table.name} were skipped: {some}"] if bad else []


def _features(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> tuple[np.ndarray | None, list[str]]:
    """Return (feature matrix (nodes, F), or None if no column is a feature; notes for the user on each column)."""
    parts, notes = list[np.ndarray](), list[str]()
    for column in columns:
        cells = [_cell(row, column) for row in rows]
        form = number_form(cells)
        numbers = [form.read(cell) for cell in cells if cell]
        if numbers and all(math.isfinite(number) for number in numbers):
            mean = sum(numbers) / len(numbers)
            parts.append(np.array([form.read(cell) if cell else mean for cell in cells])[:, None])
            notes += [form.note(column)] if form.example else []
            if len(numbers) < len(cells):
                notes.append(f"{len(cells) - len(numbers):,} nodes have no {column!r}; their mean is used")
            continue
        texts = sorted(set(cells) - {""})
        if len(texts) > _MOST_VALUES or not texts:
            reason = f"it has {len(texts):,} different texts" if texts else "it is empty"
            notes.append(f"the column {column!r} is not read: {reason}")
            continue
        parts.append(np.array([[cell == value for value in texts] for cell in cells], np.float64))
    return (np.concatenate(parts, 1) if parts else None), notes


def _ends(table: Table, columns: Mapping[str, str]) -> tuple[str, str]:
    """Return the columns of the source and the target of an edge."""
    if len(table.columns) < 2:
        raise UserError(f"{table.name} has {len(table.columns)} column; edges have a source and a target")
    source = _column(table, "source", columns, table.columns[0])
    return source, _column(table, "target", columns, next(name for name in table.columns if name != source))


def _pairs(
    table: Table, place: Mapping[str, int], columns: Mapping[str, str], bad_rows: str
) -> tuple[np.ndarray, list[str]]:
    """Return (edges (E, 2), sentences on the skipped edges)."""
    source, target = _ends(table, columns)
    edges, bad = list[tuple[int, int]](), list[str]()
    for row in table.rows:
        ends = [_cell(row.values, column) for column in (source, target)] if isinstance(row, Row) else []
        unknown = next((end for end in ends if end not in place), None)
        if isinstance(row, BadRow) or unknown is not None:
            bad.append(f"line {row.line}: {row.reason if isinstance(row, BadRow) else f'{unknown!r} is not a node'}")
        else:
            edges.append((place[ends[0]], place[ends[1]]))
    some = "; ".join(bad[:_SHOWN]) + (f"; and {len(bad) - _SHOWN:,} more" if len(bad) > _SHOWN else "")
    what = f"{len(bad):,} of {len(bad) + len(edges):,} edges of {table.name}"
    if len(bad) > len(edges) or (bad and bad_rows == "refuse"):
        raise UserError(f"{what} cannot be used: {some}; correct them, or name other columns in data.columns")
    return np.array(edges, np.int64).reshape(-1, 2), [f"{what} were skipped: {some}"] if bad else []
