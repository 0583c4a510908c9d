"""Processor of graphs: nodes with columns of features, tags and encodings, and the edges between them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from qkv.data.features.ngrams import Bag
from qkv.data.graphs.encodings import (
    adjacency,
    degrees,
    distances,
    laplacian,
    magnetic,
    neighbourhoods,
    returns,
    visits,
)
from qkv.data.graphs.raw import RawGraph, read_graph
from qkv.data.graphs.subtrees import first_labels, levels_of, subtrees
from qkv.data.processors.processor import Processor
from qkv.data.records.model import BadRow
from qkv.data.records.readers.graph_tables import GRAPH
from qkv.data.records.table import Row, Table
from qkv.data.records.values import Unusable, natural
from qkv.layers.graph import Graph, GraphSignal
from qkv.spec.models.wide import Subtrees
from qkv.spec.register import implements
from qkv.spec.signals.graphs import DEGREES, NEIGHBOURHOODS, Graphs
from qkv.system.errors import UserError

_WHOLE = 64
"""Largest absolute value of a feature that is treated as a whole number."""
_SAMPLE = 100
"""Number of rows that are examined to recognise a table of graphs."""


@dataclass(frozen=True, repr=False)
class EncodedGraph:
    """Encoded graph of n nodes.

    edges (2, E): sources and targets that mixers read. features: sparse matrix (n, F), scaled. tags (n): column index
    of each node's tag, -1 for none. encodings (n, K). distances (n, n) or None.
    """

    edges: np.ndarray
    features: Any
    tags: np.ndarray
    encodings: np.ndarray
    distances: np.ndarray | None

    def __len__(self) -> int:
        return len(self.tags)

    def __repr__(self) -> str:
        """Return a digest of the content, from which a run recognises its data."""
        total = hashlib.sha256()
        arrays = (self.edges, self.features.indptr, self.features.indices, self.features.data, self.tags)
        for array in (*arrays, self.encodings, self.distances):
            total.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return f"graph {total.hexdigest()}"

    def part(self, nodes: np.ndarray) -> EncodedGraph:
        """Return the subgraph of ``nodes`` (sorted) with the edges between them; it keeps the encodings of the whole
        graph.
        """
        place = np.full(len(self), -1)
        place[nodes] = np.arange(len(nodes))
        edges = place[self.edges]
        apart = None if self.distances is None else self.distances[np.ix_(nodes, nodes)]
        inside = edges[:, (edges >= 0).all(0)]
        return replace(
            self,
            edges=inside,
            features=self.features[nodes],
            tags=self.tags[nodes],
            encodings=self.encodings[nodes],
            distances=apart,
        )


@implements(Graphs)
class GraphsProcessor(Processor):
    """Graphs (a mapping, a networkx or torch_geometric graph) -> columns (B, N, C) of the nodes, and their edges.

    ``dropped``: numbers of self-loops and of repeated edges left out so far; ``untold``: number of nodes so far whose
    tag is unknown.
    """

    simple = "bag_of_nodes"
    strongest = Subtrees
    spec: Graphs

    @classmethod
    def recognises(cls, source: str, table: Callable[[], Table | None]) -> bool:
        rows = table()
        return rows is not None and GRAPH in rows.columns and any(_has_edges(row) for row in rows.rows[:_SAMPLE])

    def __init__(self, spec: Graphs):
        super().__init__(spec)
        self.dropped, self.untold = [0, 0], 0

    def fitted(self, values: Sequence[Any]) -> Graphs:
        graphs = _readable(values)
        sizes = {0 if graph.features is None else graph.features.shape[1] for graph in graphs}
        if len(sizes) > 1:
            few, many = min(sizes), max(sizes)
            raise UserError(f"data: nodes have {few} features in one graph and {many} in another; give all the same")
        spec, (size,) = self.spec, sizes
        if spec.num_features not in (None, size):
            raise UserError(f"data: nodes have {size} features, and the model reads {spec.num_features}")
        all_tags = sorted({tag for graph in graphs for tag in graph.tags or ()}, key=natural)
        spec = spec.changed(num_features=size, tags=tuple(all_tags) if spec.tags is None else spec.tags)
        if size and not spec.whole:
            spec = spec.changed(whole=_whole(graphs))
        fits = spec.scaling == "standard" and size and not spec.mean
        return spec.changed(**_moments(graphs)) if fits else spec

    def encode(self, value: Any) -> EncodedGraph:  # type: ignore[override]
        graph, spec = read_graph(value), self.spec
        assert spec.num_features is not None, "encoding needs a fitted processor"
        width = 0 if graph.features is None else graph.features.shape[1]
        if width != spec.num_features:
            raise Unusable(f"nodes have {width} features, and the model reads {spec.num_features}")
        self._count(graph.edges)
        place = {tag: i for i, tag in enumerate(spec.tags or ())}
        tags = np.array([place.get(tag, -1) for tag in graph.tags or [""] * graph.num_nodes], np.int32)
        self.untold += int((tags < 0).sum()) if graph.tags else 0
        structure = _structure(graph.edges, graph.num_nodes, spec)
        return EncodedGraph(features=_scaled(graph, spec), tags=tags, **structure)

    def encoded(self, value: Any, name: str) -> EncodedGraph:
        """Encode the graph of the source ``name``. Raises ``UserError`` if the graph cannot be read."""
        try:
            return self.encode(value)
        except Unusable as error:
            raise UserError(f"data.source: {name}: {error}") from None

    def rewired(self, encoded: EncodedGraph, edges: np.ndarray) -> EncodedGraph:
        """Return a copy of an encoded graph with ``edges`` (E, 2) instead of its edges, and with encodings of the new
        edges.
        """
        return replace(encoded, **_structure(edges, len(encoded), self.spec))

    def count(self, value: Any) -> int:
        """Return the number of nodes of a raw graph. Raises ``Unusable``."""
        return read_graph(value).num_nodes

    def size(self, encoded: Any) -> int:
        return len(encoded)

    def signal(self, encoded: Sequence[Any]) -> GraphSignal:
        longest = max(map(len, encoded))
        values = np.zeros((len(encoded), longest, self.spec.num_columns or 1), np.float32)
        for row, graph in enumerate(encoded):
            values[row, : len(graph)] = self.columns(graph)
        edges = [graph.edges.astype(np.int64) + row * longest for row, graph in enumerate(encoded)]
        lengths = torch.tensor([len(graph) for graph in encoded])
        return GraphSignal(
            torch.from_numpy(values),
            None if bool((lengths == longest).all()) else lengths,
            visible=_neighbours(encoded, longest) if self.spec.neighbours else None,
            graph=Graph(torch.from_numpy(np.concatenate(edges, 1)), _distances(encoded, longest)),
        )

    def columns(self, graph: EncodedGraph) -> np.ndarray:
        """Return the columns (n, C) of the nodes of a graph: features, tags, encodings."""
        spec, tags = self.spec, np.zeros((len(graph), len(self.spec.tags or ())), np.float32)
        tagged = np.flatnonzero(graph.tags >= 0)
        tags[tagged, graph.tags[tagged]] = 1.0
        dense = graph.features.toarray()
        if spec.mean:
            dense = (dense - np.array(spec.mean, np.float32)) / np.array(spec.deviation, np.float32)
        columns = np.concatenate((dense, tags, graph.encodings), 1)
        return columns if columns.shape[1] else np.ones((len(graph), 1), np.float32)

    def features(self, encoded: Any) -> np.ndarray:
        """Compute a bag of nodes: numbers of nodes and edges, then the sum and the mean of features over the nodes.

        The features of a node are its columns of features and tags, its degree, its hashed neighbourhood (tags of the
        node and its neighbours, or degrees if there are no tags), and its random-walk encodings.
        """
        spec = self.spec
        each = np.minimum(np.bincount(encoded.edges[0], minlength=len(encoded)), DEGREES)
        near = neighbourhoods(encoded.tags if spec.tags else each, encoded.edges, NEIGHBOURHOODS)
        begin = spec.sides * spec.laplacian
        walks = encoded.encodings[:, begin : begin + spec.sides * spec.walk]
        features = self.columns(encoded)[:, : spec.given_columns]
        nodes = np.concatenate((features, np.eye(DEGREES + 1)[each], near, walks), 1)
        sizes = len(nodes), encoded.edges.shape[1]
        return np.concatenate((sizes, nodes.sum(0), nodes.mean(0))).astype(np.float32)

    def bag(self, encoded: Any, part: Subtrees) -> Bag:
        """Return the simple features of a graph, and the labels of its nodes after each round of Weisfeiler & Leman."""
        spec, simple = self.spec, self.features(encoded)
        tags = encoded.tags if spec.tags else None
        levels = self._levels(encoded) if spec.num_features else None
        degrees = np.bincount(encoded.edges[0], minlength=len(encoded))
        labels = first_labels(tags, levels, degrees)
        ids, counts = subtrees(labels, encoded.edges.astype(np.int64), part.rounds, part.buckets)
        return Bag(np.concatenate((np.arange(len(simple)), len(simple) + ids)), np.concatenate((simple, counts)))

    def _levels(self, encoded: EncodedGraph) -> np.ndarray:
        """Return the levels of the nodes' features; features that are neither whole numbers nor standardised have no
        levels.
        """
        spec, features = self.spec, encoded.features
        if spec.scaling == "rows":
            features = features.sign()
        whole = np.array(spec.whole or [False] * features.shape[1], bool)
        if not spec.mean:
            return levels_of(features[:, whole], whole[whole], np.zeros(1), np.ones(1))
        return levels_of(features, whole, np.array(spec.mean), np.array(spec.deviation))

    def shown(self, value: Any) -> str:
        graph = read_graph(value)
        return f"{graph.num_nodes:,} nodes, {len(graph.edges):,} edges"

    def notes(self) -> list[str]:
        """Return sentences for the user: how many edges were left out, and how many tags are unknown."""
        names = ("from a node to itself", "repeated")
        parts = [f"{count:,} {name}" for count, name in zip(self.dropped, names, strict=True) if count]
        sentences = [f"edges left out: {', '.join(parts)}"] if parts else []
        return [
            *sentences,
            *([f"{self.untold:,} nodes have a tag that did not occur in training"] if self.untold else []),
        ]

    def _count(self, edges: np.ndarray) -> None:
        """Count self-loops and repeated edges; an edge in the opposite direction is not a repetition."""
        loops = edges[:, 0] == edges[:, 1]
        self.dropped[0] += int(loops.sum())
        self.dropped[1] += int((~loops).sum()) - len(np.unique(edges[~loops], axis=0))


def _has_edges(row: Row | BadRow) -> bool:
    value = row.values.get(GRAPH) if isinstance(row, Row) else None
    return isinstance(value, Mapping) and bool({"edges", "edge_index"} & value.keys())


def _readable(values: Sequence[Any]) -> list[RawGraph]:
    """Return the graphs that can be read. If there are none, raises ``Unusable`` with the reason for the first
    graph.
    """
    graphs, reason = list[RawGraph](), Unusable("there is no graph")
    for number, value in enumerate(values):
        try:
            graphs.append(read_graph(value))
        except Unusable as error:
            reason = error if number == 0 else reason
    if not graphs:
        raise reason
    return graphs


def _moments(graphs: Sequence[RawGraph]) -> dict[str, tuple[float, ...]]:
    """Compute the mean and standard deviation of each feature over all nodes; the deviation of a constant feature is
    1.
    """
    count = sum(graph.num_nodes for graph in graphs)
    features = [graph.features for graph in graphs]
    mean = np.sum([np.asarray(each.sum(0), np.float64).ravel() for each in features], 0) / count
    squares = np.sum([np.asarray(each.multiply(each).sum(0)).ravel() for each in features], 0) / count
    deviation = np.sqrt(np.maximum(squares - mean**2, 0.0))
    deviation = np.where(deviation > 1e-6 * np.maximum(1.0, np.abs(mean)), deviation, 1.0)
    return {"mean": tuple(map(float, mean)), "deviation": tuple(map(float, deviation))}


def _whole(graphs: Sequence[RawGraph]) -> tuple[bool, ...]:
    """Return True for each feature that is a small whole number at all nodes."""
    whole = np.ones(graphs[0].features.shape[1], bool)
    for graph in graphs:
        entries = graph.features.tocoo()
        whole[entries.col[(entries.data != np.rint(entries.data)) | (abs(entries.data) > _WHOLE)]] = False
    return tuple(whole.tolist())


def _scaled(graph: RawGraph, spec: Graphs) -> Any:
    from scipy.sparse import csr_matrix, diags

    if graph.features is None:
        return csr_matrix((graph.num_nodes, 0), dtype=np.float32)
    if spec.scaling != "rows":
        return graph.features
    sums = np.asarray(abs(graph.features).sum(1)).ravel()
    return (diags(1 / np.where(sums > 0, sums, 1.0)) @ graph.features).tocsr().astype(np.float32)


def _structure(edges: np.ndarray, nodes: int, spec: Graphs) -> dict[str, Any]:
    """Compute the fields of an encoded graph that depend on its edges (E, 2): edges, encodings, distances."""
    one_way, both = (adjacency(edges, nodes, directed) for directed in (True, False))
    read = one_way if spec.directed and not spec.both_ways else both
    return {
        "edges": np.stack(read.nonzero()).astype(np.int32),
        "encodings": _encodings(one_way, both, spec),
        "distances": distances(read, spec.distances) if spec.distances else None,
    }


def _encodings(one_way: Any, both: Any, spec: Graphs) -> np.ndarray:
    """Compute the encodings (n, K) of a graph, in the order of the columns."""
    encodings: list[np.ndarray] = [np.zeros((both.shape[0], 0))]
    if spec.laplacian:
        sized = np.sqrt(both.shape[0])  # entries of about 1 in graphs of any size
        vectors = (
            magnetic(one_way, spec.laplacian, spec.potential) if spec.directed else laplacian(both, spec.laplacian)
        )
        encodings.append(sized * vectors)
    if spec.walk:
        encodings += (
            [visits(a, spec.walk) for a in (one_way, one_way.T.tocsr())]
            if spec.directed
            else [returns(both, spec.walk)]
        )
    if spec.degree:
        encodings += [degrees(a, spec.degree) for a in ((one_way, one_way.T) if spec.directed else (both,))]
    return np.concatenate(encodings, 1).astype(np.float32)


def _neighbours(encoded: Sequence[EncodedGraph], longest: int) -> torch.Tensor:
    """Return the mask (B, N, N) of the keys that each node attends to: itself and the sources of its edges."""
    mask = np.zeros((len(encoded), longest, longest), bool)
    for row, graph in enumerate(encoded):
        source, target = graph.edges
        mask[row, target, source] = True
        mask[row, np.arange(len(graph)), np.arange(len(graph))] = True
    return torch.from_numpy(mask)


def _distances(encoded: Sequence[EncodedGraph], longest: int) -> torch.Tensor | None:
    if encoded[0].distances is None:
        return None
    lengths = np.full((len(encoded), longest, longest), -1, np.int64)
    for row, graph in enumerate(encoded):
        assert graph.distances is not None
        lengths[row, : len(graph), : len(graph)] = graph.distances
    return torch.from_numpy(lengths)
