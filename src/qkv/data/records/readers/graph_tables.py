"""Tables of graphs, one graph per row: JSON lines, and ``.npz`` files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.data.corpora.text import TextSource
from qkv.data.records.model import BadRow
from qkv.data.records.readers.graph_arrays import feature_mapping, needed
from qkv.data.records.table import Row, Table
from qkv.system.errors import UserError

GRAPH = "graph"
"""Name of the column of graphs."""
_KEYS = ("num_nodes", "edges", "edge_index", "features", "x", "tags", "directed")


def with_graphs(table: Table) -> Table:
    """Join the columns ``edges``, ``num_nodes``, ``features`` and ``tags`` of a table to one column ``graph``.

    A table without edges is returned unchanged.
    """
    if GRAPH in table.columns or not {"edges", "edge_index"} & set(table.columns):
        return table

    def parse() -> Iterator[Row | BadRow]:
        for row in table.parse():
            if isinstance(row, Row):
                graph = {key: value for key, value in row.values.items() if key in _KEYS and value is not None}
                rest = {key: value for key, value in row.values.items() if key not in _KEYS}
                row = row._replace(values={GRAPH: graph, **rest})
            yield row

    rest = tuple(column for column in table.columns if column not in _KEYS)
    return replace(table, columns=(GRAPH, *rest), parse=parse)


def graph_table(text: TextSource, arrays: dict[str, np.ndarray]) -> Table:
    """Build the table of an ``.npz`` file of labelled graphs from its arrays.

    Arrays: ``graph_ptr`` (graphs + 1), where graph i has the nodes ``graph_ptr[i]`` to ``graph_ptr[i + 1]``, numbered
    across all graphs; ``edges`` (E, 2); ``graph_labels`` (graphs); optionally ``node_tags``, and ``features`` (nodes,
    F) or packed bits with ``num_features``. Raises ``UserError``.
    """
    starts, labels = (needed(arrays, name, text.name) for name in ("graph_ptr", "graph_labels"))
    wrong = starts.ndim != 1 or len(starts) != len(labels) + 1 or starts[0] != 0 or (np.diff(starts) < 0).any()
    if wrong or starts.dtype.kind not in "iu":
        raise UserError(f"{text.name}: graph_ptr does not say where the nodes of {len(labels):,} graphs begin and end")
    graphs = list(_graphs(arrays, starts.astype(np.int64), text.name))
    rows = [
        Row(i + 1, {GRAPH: graph, "label": str(label)})
        for i, (graph, label) in enumerate(zip(graphs, labels, strict=True))
    ]
    return Table(text.name, (GRAPH, "label"), lambda: iter(rows), text.digest())


def _graphs(arrays: dict[str, np.ndarray], starts: np.ndarray, name: str) -> Iterator[dict[str, Any]]:
    """Yield the graphs of a file as plain mappings; the nodes of each graph are counted from 0."""
    edges, tags = needed(arrays, "edges", name), arrays.get("node_tags")
    features = feature_mapping(arrays, name).get("features")
    _check(edges, tags, features, int(starts[-1]), name)
    owners = np.searchsorted(starts, edges[:, 0], side="right") - 1
    order = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[order], np.arange(len(starts)))
    for i, (first, last) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        local = edges[order[ends[i] : ends[i + 1]]].astype(np.int64) - first
        graph: dict[str, Any] = {"num_nodes": last - first, "edges": local.tolist()}
        if tags is not None:
            graph["tags"] = tags[first:last].tolist()
        if features is not None:
            graph["features"] = features[first:last].tolist()
        yield graph


def _check(edges: np.ndarray, tags: np.ndarray | None, features: Any, count: int, name: str) -> None:
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        raise UserError(f"{name}: edges are not pairs of node numbers, (edges, 2)")
    if edges.size and not 0 <= edges.min() <= edges.max() < count:
        raise UserError(f"{name}: an edge has a node outside of 0 to {count - 1}")
    if isinstance(features, dict):
        raise UserError(f"{name}: features of several graphs are read as rows; give features (nodes, F)")
    for what, values in (("node_tags", tags), ("features", features)):
        if values is not None and len(values) != count:
            raise UserError(f"{name}: {len(values):,} {what} are given for {count:,} nodes")
