"""Structural encodings against loops over nodes and walks, and against networkx."""

from __future__ import annotations

import networkx
import numpy as np
import pytest

from qkv.data.graphs import encodings
from qkv.data.graphs.encodings import adjacency

EDGES = np.array([(0, 1), (1, 2), (2, 3), (3, 4), (4, 1), (0, 5), (3, 3), (1, 0)])
NODES = 7
"""A cycle with two tails and a lone node; a self-loop and an edge in both directions."""


def loops(directed: bool) -> np.ndarray:
    a = np.zeros((NODES, NODES))
    for source, target in EDGES.tolist():
        if source != target:
            a[source, target] = 1
            a[target, source] = max(a[target, source], 0 if directed else 1)
    return a


@pytest.mark.parametrize("directed", [False, True])
def test_adjacency_has_no_loops_and_no_repetitions(directed: bool) -> None:
    assert (adjacency(EDGES, NODES, directed).toarray() == loops(directed)).all()


def test_eigenvectors_solve_the_normalised_laplacian() -> None:
    graph = networkx.from_numpy_array(loops(False)[:6, :6])
    matrix = networkx.normalized_laplacian_matrix(graph).toarray()
    found = encodings.laplacian(adjacency(EDGES, 6, False), 3)
    values = np.linalg.eigvalsh(matrix)
    for column, value in zip(found.T, values[1:4], strict=True):
        np.testing.assert_allclose(matrix @ column, value * column, atol=1e-10)
        assert abs(np.linalg.norm(column) - 1) < 1e-10
        assert column[np.abs(column).argmax()] > 0
    assert encodings.laplacian(adjacency(EDGES[:1], 2, False), 4)[:, 1:].any() == 0


def test_many_nodes_have_the_same_eigenvectors(monkeypatch: pytest.MonkeyPatch) -> None:
    a = adjacency(np.stack((np.arange(29), np.arange(1, 30)), 1), 30, False)
    expected = encodings.laplacian(a, 4)
    monkeypatch.setattr(encodings, "_DENSE", 0)
    np.testing.assert_allclose(np.abs(encodings.laplacian(a, 4)), np.abs(expected), atol=1e-6)


def test_the_magnetic_laplacian_tells_the_direction() -> None:
    a, q, n = loops(True)[:6, :6], 0.2, 6
    s = (a + a.T) / 2
    h = np.array([[s[i, j] * np.exp(2j * np.pi * q * (a[i, j] - a[j, i])) for j in range(n)] for i in range(n)])
    root = np.diag(s.sum(1) ** -0.5)
    matrix = np.eye(n) - root @ h @ root
    found = encodings.magnetic(adjacency(EDGES, 6, True), 2, q)
    for i, value in enumerate(np.linalg.eigvalsh(matrix)[:2]):
        column = found[:, i] + 1j * found[:, 2 + i]
        np.testing.assert_allclose(matrix @ column, value * column, atol=1e-10)
    turned = encodings.magnetic(adjacency(EDGES[:, ::-1], 6, True), 2, q)
    assert not np.allclose(found, turned)


def test_returns_are_shares_of_walks() -> None:
    a = loops(False)
    found = encodings.returns(adjacency(EDGES, NODES, False), 3)

    def share(node: int, start: int, left: int) -> float:
        """Probability to be at ``start`` after ``left`` more steps."""
        if not left:
            return float(node == start)
        after = np.flatnonzero(a[node])
        return sum(share(other, start, left - 1) for other in after) / max(1, len(after))

    expected = [[share(node, node, steps) for steps in (1, 2, 3)] for node in range(NODES)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_visits_follow_the_direction_and_keep_all_walks() -> None:
    found = encodings.visits(adjacency(np.array([(0, 1), (0, 2), (1, 2)]), 3, True), 2)
    np.testing.assert_allclose(found, [[0, 0], [0.5, 0], [2.5, 3]])


def test_degrees_are_counted_up_to_the_largest() -> None:
    found = encodings.degrees(adjacency(EDGES, NODES, False), 2)
    assert found.argmax(1).tolist() == [2, 2, 2, 2, 2, 1, 0]
    assert (found.sum(1) == 1).all()


@pytest.mark.parametrize("directed", [False, True])
def test_distances_are_those_of_a_search(directed: bool) -> None:
    found = encodings.distances(adjacency(EDGES, NODES, directed), 2)
    graph = networkx.from_numpy_array(loops(directed), create_using=networkx.DiGraph)
    lengths = dict(networkx.all_pairs_shortest_path_length(graph))
    expected = [[min(lengths[j].get(i, -1), 2) for j in range(NODES)] for i in range(NODES)]
    assert found.tolist() == expected
