"""Check and convert raw graphs: a mapping, a networkx graph, or an object with ``edge_index``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv.data.records.values import Unusable

FEATURES, TAGS = ("features", "x"), ("tags", "tag", "node_tags")
"""Names of features and of the tag of nodes, in mappings and as attributes of networkx nodes."""
_LARGEST = 1e30
_MOST_NODES = 10_000_000


class RawGraph(NamedTuple):
    """Checked graph.

    edges (E, 2): (source, target); features: sparse matrix (nodes, F) of scipy, or None; tags: one text per node, or
    None.
    """

    num_nodes: int
    edges: np.ndarray
    features: Any
    tags: tuple[str, ...] | None


def read_graph(value: Any) -> RawGraph:
    """Check and convert a graph.

    Allowed are a mapping with ``edges`` (pairs) or ``edge_index`` (2, E), ``num_nodes``, ``features`` and ``tags``; a
    graph of networkx; and an object with ``edge_index``, such as a graph of torch_geometric. Raises ``Unusable`` with a
    reason.
    """
    fields = mapping_of(value)
    if fields is None:
        raise Unusable(f"the graph is a {type(value).__name__}, not a mapping with num_nodes and edges")
    edges, features, tags = _edges(fields), _features(_first(fields, FEATURES)), _tags(_first(fields, TAGS))
    count = _count(fields.get("num_nodes"), edges, features, tags)
    sizes = {"features": count if features is None else features.shape[0], "tags": count if tags is None else len(tags)}
    for name, size in sizes.items():
        if size != count:
            raise Unusable(f"the graph has {count:,} nodes, but {name} of {size:,}")
    _check_edges(edges, count)
    return RawGraph(count, edges, features, tags)


def mapping_of(value: Any) -> dict[str, Any] | None:
    """Return a graph as a mapping: the mapping itself, or the content of a networkx graph or an object with
    ``edge_index``.

    None for other values.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "is_directed") and hasattr(value, "nodes") and hasattr(value, "edges"):
        return _of_networkx(value)
    if hasattr(value, "edge_index"):
        return {name: getattr(value, name, None) for name in ("edge_index", "x", "num_nodes", "tags")}
    return None


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _of_networkx(graph: Any) -> dict[str, Any]:
    """Convert a graph of networkx to a mapping; its nodes are numbered in their order."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    fields: dict[str, Any] = {"num_nodes": len(place), "edges": [(place[e[0]], place[e[1]]) for e in graph.edges]}
    about = [data for _, data in graph.nodes(data=True)]
    for name, names in (("features", FEATURES), ("tags", TAGS)):
        columns = [_first(data, names) for data in about]
        if any(column is not None for column in columns):
            if any(column is None for column in columns):
                raise Unusable(f"some nodes have {name} and others have none")
            fields[name] = columns
    return fields


def _array(value: Any, name: str, kinds: str) -> np.ndarray:
    """Convert a list, an array or a tensor to an array of numbers. Raises ``Unusable`` for other values."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError):
        raise Unusable(f"{name} are not rows of equally many numbers") from None
    if array.size and array.dtype.kind not in kinds:
        raise Unusable(f"{name} are not {'numbers' if 'f' in kinds else 'whole numbers'}")
    return array


def _edges(fields: Mapping[str, Any]) -> np.ndarray:
    if fields.get("edge_index") is not None:
        array = _array(fields["edge_index"], "edges", "iu")
        if array.ndim != 2 or array.shape[0] != 2:
            raise Unusable("edge_index is not a source and a target per edge, (2, edges)")
        return array.T.astype(np.int64)
    if fields.get("edges") is None:
        raise Unusable("the graph has no edges; give pairs of node numbers, or an empty list")
    array = _array(fields["edges"], "edges", "iu")
    if not array.size:
        return np.zeros((0, 2), np.int64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise Unusable("edges are not pairs of node numbers")
    return array.astype(np.int64)


def _check_edges(edges: np.ndarray, count: int) -> None:
    wrong = np.flatnonzero(((edges < 0) | (edges >= count)).any(1))
    if len(wrong):
        first, second = edges[wrong[0]].tolist()
        raise Unusable(f"edge {wrong[0] + 1} joins {first} and {second}, but nodes are numbered 0 to {count - 1}")


def _features(value: Any) -> Any:
    """Convert features to a sparse matrix, from rows, a sparse matrix, or a mapping with the arrays of a CSR matrix."""
    from scipy.sparse import csr_matrix, issparse

    if value is None:
        return None
    if isinstance(value, Mapping):
        try:
            parts = (value["values"], value["indices"], value["indptr"])
            matrix = csr_matrix(parts, shape=(len(value["indptr"]) - 1, int(value["num_features"])), dtype=np.float64)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise Unusable(f"sparse features need values, indices, indptr and num_features that fit: {error}") from None
    elif issparse(value):
        matrix = csr_matrix(value, dtype=np.float64)
    else:
        dense = _array(value, "features", "iufb")
        if dense.ndim != 2:
            raise Unusable("features are not one list of numbers per node")
        if not np.isfinite(dense.astype(np.float64)).all():
            node = int(np.flatnonzero(~np.isfinite(dense.astype(np.float64)).all(1))[0])
            raise Unusable(f"a feature of node {node} is not a finite number")
        matrix = csr_matrix(dense.astype(np.float64))
    if not np.isfinite(matrix.data).all() or (np.abs(matrix.data) > _LARGEST).any():
        raise Unusable(f"a feature is not a finite number of at most {_LARGEST:g}")
    return matrix.astype(np.float32)


def _tags(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple) or not all(isinstance(tag, str | int | float) for tag in value):
        raise Unusable("tags are not one text or number per node")
    return tuple(str(tag) for tag in value)


def _count(number: Any, edges: np.ndarray, features: Any, tags: Sequence[str] | None) -> int:
    if number is None:
        rows = features.shape[0] if features is not None else len(tags) if tags is not None else None
        number = rows if rows is not None else int(edges.max(initial=-1)) + 1
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise Unusable(f"num_nodes is {number!r}, not a whole number")
    if not 0 < number <= _MOST_NODES:
        raise Unusable("the graph has no node" if number <= 0 else f"the graph has more than {_MOST_NODES:,} nodes")
    return int(number)
