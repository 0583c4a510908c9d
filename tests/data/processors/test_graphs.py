"""Graphs as they are given, made into columns of nodes and edges, and the signals of several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from qkv.data.given.plain import plain
from qkv.data.graphs.encodings import adjacency, degrees, returns
from qkv.data.graphs.raw import read_graph
from qkv.data.processors.graphs import GraphsProcessor
from qkv.data.processors.processor import build_processor
from qkv.data.records.values import Unusable
from qkv.spec.errors import SpecError
from qkv.spec.signals.graphs import Graphs, Nodes
from qkv.system.errors import UserError

PATH: dict[str, Any] = {
    "num_nodes": 3,
    "edges": [[0, 1], [1, 2], [1, 2], [2, 2]],
    "features": [[1, 3], [0, 0], [2, 2]],
    "tags": ["C", "C", "O"],
}
PAIR: dict[str, Any] = {"edges": [[1, 0]], "features": [[4.0, 0], [0, 1]], "tags": ["N", "C"]}


def processor(**fields: Any) -> GraphsProcessor:
    found = build_processor(Graphs(**fields).changed())
    assert isinstance(found, GraphsProcessor)
    return GraphsProcessor(found.fitted([PATH, PAIR]))


def test_columns_are_features_tags_and_encodings() -> None:
    made = processor(scaling="rows", walk=2, degree=1)
    assert (made.spec.num_features, made.spec.tags) == (2, ("C", "N", "O"))
    a = adjacency(np.array(PATH["edges"]), 3, False)
    expected = np.concatenate(
        (
            [[0.25, 0.75], [0, 0], [0.5, 0.5]],
            [[1, 0, 0], [1, 0, 0], [0, 0, 1]],
            returns(a, 2),
            degrees(a, 1),
        ),
        1,
    )
    encoded = made.encode(PATH)
    np.testing.assert_allclose(made.columns(encoded), expected, atol=1e-6)
    assert made.notes() == ["edges left out: 1 from a node to itself, 1 repeated"]
    assert sorted(map(tuple, encoded.edges.T.tolist())) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    unknown = {**PAIR, "tags": ["Zn", "C"]}
    assert made.columns(made.encode(unknown))[:, 2:5].tolist() == [[0, 0, 0], [1, 0, 0]]


def test_standardised_features_have_the_moments_of_all_nodes() -> None:
    made = processor(scaling="standard")
    rows = np.concatenate([made.columns(made.encode(graph))[:, :2] for graph in (PATH, PAIR)])
    np.testing.assert_allclose(rows.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(rows.std(0), 1, atol=1e-6)


def test_a_batch_pads_nodes_and_numbers_them_over_its_rows() -> None:
    made = processor(neighbours=True, distances=1)
    signal = made.signal([made.encode(PATH), made.encode(PAIR)])
    assert signal.values.shape == (2, 3, 5)
    assert signal.lengths is not None
    assert signal.lengths.tolist() == [3, 2]
    assert signal.graph is not None
    edges = {tuple(edge) for edge in signal.graph.edges.t().tolist()}
    assert edges == {(0, 1), (1, 0), (1, 2), (2, 1), (3, 4), (4, 3)}
    assert signal.graph.distances is not None
    assert signal.graph.distances.tolist() == [[[0, 1, 1], [1, 0, 1], [1, 1, 0]], [[0, 1, -1], [1, 0, -1], [-1] * 3]]
    assert signal.visible is not None
    assert signal.visible.int().tolist() == [
        [[1, 1, 0], [1, 1, 1], [0, 1, 1]],
        [[1, 1, 0], [1, 1, 0], [0, 0, 0]],
    ]
    assert made.signal([made.encode(PATH)]).lengths is None


@pytest.mark.parametrize("both_ways", [True, False])
def test_directed_graphs_have_two_sets_of_encodings(both_ways: bool) -> None:
    made = processor(directed=True, both_ways=both_ways, laplacian=2, walk=1, degree=1)
    encoded = made.encode(PATH)
    assert encoded.encodings.shape == (3, 2 * (2 + 1 + 2))
    assert made.spec.num_columns == 5 + 10
    reverse = made.encode({**PATH, "edges": [edge[::-1] for edge in PATH["edges"]]})
    assert not np.allclose(reverse.encodings, encoded.encodings)
    assert encoded.edges.shape[1] == (4 if both_ways else 2)


def test_other_forms_of_a_graph_are_read() -> None:
    graph = networkx.Graph()
    for node, tag, features in zip("abc", PATH["tags"], PATH["features"], strict=True):
        graph.add_node(node, tag=tag, x=features)
    graph.add_edges_from([("a", "b"), ("b", "c")])
    pair = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    geometric = SimpleNamespace(edge_index=pair, x=torch.tensor(PATH["features"]), num_nodes=3, tags=PATH["tags"])
    sparse = csr_matrix(np.array(PATH["features"], float))
    parts = {"indptr": sparse.indptr, "indices": sparse.indices, "values": sparse.data, "num_features": 2}
    made = processor(walk=2)
    expected = made.encode(PATH)
    for given in (graph, geometric, {**PATH, "features": sparse}, {**PATH, "features": parts}, plain(graph)):
        found = made.encode(given)
        assert repr(found) == repr(expected)
    assert repr(made.encode({**PATH, "edges": []})) != repr(expected)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"edges": [[0, 3]]}, "edge 1 joins 0 and 3, but nodes are numbered 0 to 2"),
        ({"edges": [[0, -1]]}, "edge 1 joins 0 and -1"),
        ({"edges": [[0, 1], [2]]}, "edges are not rows of equally many numbers"),
        ({"edges": [[0, 1, 2]]}, "edges are not pairs of node numbers"),
        ({"edges": "ab"}, "edges are not whole numbers"),
        ({"edges": None}, "the graph has no edges; give pairs of node numbers, or an empty list"),
        ({"num_nodes": 0, "features": None, "tags": None, "edges": []}, "the graph has no node"),
        ({"num_nodes": 2.5}, "num_nodes is 2.5, not a whole number"),
        ({"num_nodes": 4}, "the graph has 4 nodes, but features of 3"),
        ({"features": [[1, 2], [float("nan"), 1], [0, 0]]}, "a feature of node 1 is not a finite number"),
        ({"features": [[1, 1e300], [0, 1], [0, 0]]}, "a feature is not a finite number of at most 1e\\+30"),
        ({"features": [1, 2, 3]}, "features are not one list of numbers per node"),
        ({"features": [["a"], ["b"], ["c"]]}, "features are not numbers"),
        ({"features": {"values": [1]}}, "sparse features need values, indices, indptr and num_features that fit"),
        ({"features": [[1], [2], [3]]}, "nodes have 1 features, and the model reads 2"),
        ({"tags": "CCO"}, "tags are not one text or number per node"),
        ({"tags": ["C"]}, "the graph has 3 nodes, but tags of 1"),
    ],
)
def test_hostile_graphs_have_a_reason(changed: Any, sentence: str) -> None:
    with pytest.raises(Unusable, match=sentence):
        processor().encode({**PATH, **changed})


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(Unusable, match="the graph is a int, not a mapping with num_nodes and edges"):
        read_graph(7)
    half = networkx.Graph()
    half.add_node(0, tag="C")
    half.add_node(1)
    with pytest.raises(Unusable, match="some nodes have tags and others have none"):
        read_graph(half)
    with pytest.raises(UserError, match="nodes have 1 features in one graph and 2 in another"):
        build_processor(Graphs()).fitted([PATH, {"edges": [[0, 1]], "features": [[1], [2]]}])


def test_a_lone_node_without_columns_has_a_constant_one() -> None:
    made = GraphsProcessor(GraphsProcessor(Graphs(laplacian=2)).fitted([{"num_nodes": 1, "edges": []}]))
    assert made.signal([made.encode({"num_nodes": 1, "edges": []})]).values.tolist() == [[[0.0, 0.0]]]
    bare = GraphsProcessor(GraphsProcessor(Graphs()).fitted([{"num_nodes": 2, "edges": []}]))
    assert bare.signal([bare.encode({"num_nodes": 2, "edges": []})]).values.tolist() == [[[1.0], [1.0]]]


def test_the_front_end_takes_the_sizes_of_the_processor() -> None:
    spec = processor(laplacian=3, distances=2, directed=True).spec
    found = Nodes().fitted(spec)
    assert (found.num_columns, found.first_eigenvector, found.eigenvectors, found.phases) == (11, 5, 3, True)
    assert found.distances == 2
    with pytest.raises(SpecError, match="3 columns given, but the nodes of the data have 11"):
        Nodes(num_columns=3).fitted(spec)
