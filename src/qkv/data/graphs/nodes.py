"""Tables of the nodes of one graph, with labels and splits: ``.npz`` files, or a file of nodes and a file of edges."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.corpora.corpus import TEST, TRAIN, VALIDATION
from qkv.data.corpora.named import PublishedFile
from qkv.data.corpora.sources import published
from qkv.data.corpora.text import TextSource
from qkv.data.graphs.node_files import read_edge_file, read_node_files
from qkv.data.graphs.raw import read_graph
from qkv.data.reading import identity_of_data, read_once
from qkv.data.records.readers.graph_arrays import arrays_of, feature_mapping, needed
from qkv.spec import data as spec
from qkv.system.errors import UserError, nearest

SEPARATOR = "|"
KNOWN = {
    "cora": PublishedFile("cora.npz", "", 96083, "55b70d6604225aa95c8df633cee172303532baa83c8e93e51f511bfddd94ede6"),
    "webkb-wisconsin": PublishedFile(
        "wisconsin.npz", "", 22719, "9bfd408b31d31a92a6101fdcc492bfa1e20b1a7fd19b445180802b0ed2e3db91"
    ),
}
"""Known graphs with labelled nodes: Planetoid's public split (Yang et al. 2016); ten splits (Pei et al. 2020)."""
_SPLITS = {TRAIN: ("train",), VALIDATION: ("val", "valid", "validation", "dev"), TEST: ("test",)}


@dataclass(frozen=True)
class NodeTable:
    """Nodes of one graph.

    graph: mapping as a processor reads it; names, labels: name and label of each node, where an unknown label is None;
    splits: node indices by split; digest: hash of the content.
    """

    name: str
    graph: Mapping[str, Any]
    names: tuple[str, ...]
    labels: tuple[str | None, ...]
    splits: Mapping[str, np.ndarray]
    digest: str
    notes: tuple[str, ...] = ()


@read_once(lambda data, fold=0: (identity_of_data(data), fold))
def open_nodes(data: spec.Data, fold: int = 0) -> NodeTable:
    """Read the graph ``data.source``: a known graph, an ``.npz`` file, or ``nodes.csv | edges.csv``.

    ``fold``: index of the split, if the data has several. Without a validation split, a fraction
    ``validation_fraction`` of the training nodes of each label is held out. Raises ``UserError``.
    """
    table = _read(data.source, data, fold)
    return replace(table, splits=_completed(table, data.validation_fraction))


@read_once(identity_of_data)
def open_graph(data: spec.Data) -> NodeTable:
    """Read the graph ``data.source`` for its edges, without labels and splits.

    Sources are those of ``open_nodes``, or one table of edges. Raises ``UserError``.
    """
    return replace(_read(data.source, data, 0, labelled=False), splits={})


def _read(source: str, data: spec.Data, fold: int, labelled: bool = True) -> NodeTable:
    if source in KNOWN:
        return read_npz(published(source, KNOWN[source]), source, fold, labelled)
    if SEPARATOR in source and not Path(source).expanduser().exists():
        names = [name.strip() for name in source.split(SEPARATOR)]
        if len(names) != 2 or not all(names):
            raise UserError(f"data.source: {source!r} should name two files, such as 'nodes.csv | edges.csv'")
        nodes, edges = (_file(name) for name in names)
        return _of_files(source, nodes, edges, data, labelled)
    text = _file(source)
    if not source.lower().endswith(".npz") and not labelled:
        return _of_edges(source, text, data)
    if not source.lower().endswith(".npz"):
        raise UserError(
            f"data.source: {source!r} is no graph with labelled nodes; name an .npz file, or two tables, "
            "'nodes.csv | edges.csv'"
        )
    return read_npz(text, source, fold, labelled)


def _of_edges(source: str, text: TextSource, data: spec.Data) -> NodeTable:
    names, pairs, notes = read_edge_file(text, data.columns, data.bad_rows)
    digest = hashlib.sha256(f"{text.digest()} {sorted(data.columns.items())}".encode()).hexdigest()
    return NodeTable(
        source, {"num_nodes": len(names), "edges": pairs}, names, (None,) * len(names), {}, digest, tuple(notes)
    )


def _file(source: str) -> TextSource:
    path = Path(source).expanduser()
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise UserError(f"data.source: {source!r} {what}; name one, or a known graph: {nearest(source, KNOWN)}")
    return TextSource.of_file(path, source)


def _of_files(source: str, nodes: TextSource, edges: TextSource, data: spec.Data, labelled: bool) -> NodeTable:
    files = read_node_files(nodes, edges, data.columns, data.bad_rows, labelled)
    digest = hashlib.sha256(f"{nodes.digest()} {edges.digest()} {sorted(data.columns.items())}".encode()).hexdigest()
    splits: dict[str, list[int]] = {}
    for node, name in enumerate(files.parts):
        split = next((split for split, names in _SPLITS.items() if name.lower() in names), None)
        if name and split is None:
            allowed = ", ".join(name for names in _SPLITS.values() for name in names)
            raise UserError(
                f"{nodes.name}: the node {files.names[node]!r} is in the split {name!r}; give one of {allowed}"
            )
        if split is not None:
            splits.setdefault(split, []).append(node)
    arrays = {split: np.array(numbers) for split, numbers in splits.items()}
    return NodeTable(source, files.graph, files.names, files.labels, arrays, digest, files.notes)


def read_npz(text: TextSource, name: str, fold: int = 0, labelled: bool = True) -> NodeTable:
    """Read a graph with labelled nodes from an ``.npz`` file.

    Arrays: ``edges`` (E, 2); ``labels`` (n), where a negative number means unknown; optionally ``label_names``;
    ``features`` (n, F), or packed bits with ``num_features``, or ``feature_indptr``, ``feature_indices``,
    ``feature_values`` and ``num_features``; ``train_index`` … or ``train_masks`` (folds, n) …, with ``val`` and
    ``test``. ``labelled``: False if labels may be missing.
    """
    arrays = arrays_of(text)
    if not labelled and "labels" not in arrays:
        graph = {"edges": needed(arrays, "edges", text.name), **feature_mapping(arrays, text.name)}
        graph = {"num_nodes": read_graph(graph).num_nodes, **graph}
        names = tuple(map(str, range(graph["num_nodes"])))
        return NodeTable(name, graph, names, (None,) * len(names), {}, text.digest())
    labels = needed(arrays, "labels", text.name)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UserError(f"{text.name}: labels are not one whole number per node; name the classes in label_names")
    names = arrays.get("label_names")
    classes: Callable[[int], str] = str if names is None else lambda i: str(names[i])
    named_labels = tuple(classes(int(label)) if label >= 0 else None for label in labels)
    edges = needed(arrays, "edges", text.name)
    graph = {"num_nodes": len(labels), "edges": edges, **feature_mapping(arrays, text.name)}
    digest = hashlib.sha256(f"{text.digest()} {fold}".encode()).hexdigest()
    splits = _splits(arrays, len(labels), fold, text.name)
    return NodeTable(name, graph, tuple(map(str, range(len(labels)))), named_labels, splits, digest)


def _splits(arrays: Mapping[str, np.ndarray], count: int, fold: int, name: str) -> dict[str, np.ndarray]:
    splits: dict[str, np.ndarray] = {}
    for split, names in _SPLITS.items():
        for part in names:
            index, masks = arrays.get(f"{part}_index"), arrays.get(f"{part}_masks")
            if index is not None:
                splits[split] = index.astype(np.int64)
            elif masks is not None:
                masks = np.atleast_2d(masks)
                if fold >= len(masks):
                    raise UserError(f"task.fold: {fold} given, and {name} has the folds 0 to {len(masks) - 1}")
                splits[split] = np.flatnonzero(masks[fold])
        if split in splits and len(splits[split]) and not 0 <= splits[split].min() <= splits[split].max() < count:
            raise UserError(f"{name}: the split {split} has a node outside of 0 to {count - 1}")
    return splits


def _completed(table: NodeTable, fraction: float) -> dict[str, np.ndarray]:
    """Return the splits of labelled nodes, in the order of ``_SPLITS``.

    If the data has no validation split, a fraction of the training nodes of each label is held out for it.
    """
    labelled = np.array([label is not None for label in table.labels])
    splits = {split: np.unique(nodes[labelled[nodes]]) for split, nodes in table.splits.items()}
    if TRAIN not in splits:
        split_nodes = np.concatenate([np.zeros(0, np.int64), *splits.values()])
        splits[TRAIN] = np.setdiff1d(np.flatnonzero(labelled), split_nodes)
    if VALIDATION not in splits:
        splits[VALIDATION] = _held_out(splits[TRAIN], table.labels, fraction)
        splits[TRAIN] = np.setdiff1d(splits[TRAIN], splits[VALIDATION])
    for split, nodes in splits.items():
        if not len(nodes):
            raise UserError(f"data.source: the {split} split of {table.name!r} has no node with a label")
    overlap = np.intersect1d(splits[TRAIN], splits[VALIDATION])
    if len(overlap):
        raise UserError(f"data.source: {len(overlap):,} nodes of {table.name!r} are in both training and validation")
    return {split: splits[split] for split in _SPLITS if split in splits}


def _held_out(nodes: np.ndarray, labels: Sequence[str | None], fraction: float) -> np.ndarray:
    """Draw a fraction of the nodes of each label with a fixed seed; at least one node in all."""
    order = np.random.default_rng(0).permutation(nodes)
    groups: dict[str | None, list[int]] = {}
    for node in order.tolist():
        groups.setdefault(labels[node], []).append(node)
    validation = [node for group in groups.values() for node in group[: round(fraction * len(group))]]
    return np.sort(np.array(validation or order[:1].tolist(), np.int64))
