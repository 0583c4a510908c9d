"""Encodings of the structure of a graph: eigenvectors, random walks, degrees, neighbourhoods and shortest paths.

A: adjacency matrix (n, n) of scipy, sparse, A_ij = 1 for an edge i -> j; symmetric for undirected graphs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_DENSE = 600
"""Maximum number of nodes for which all eigenvectors are computed at once."""
_AT_ONCE = 512


def adjacency(edges: np.ndarray, nodes: int, directed: bool) -> Any:
    """Build the adjacency matrix of ``edges`` (E, 2) without self-loops and repetitions, symmetric unless
    ``directed``.
    """
    from scipy.sparse import csr_matrix

    pairs = edges[edges[:, 0] != edges[:, 1]]
    ones = np.ones(len(pairs), np.float64)
    matrix = csr_matrix((ones, (pairs[:, 0], pairs[:, 1])), shape=(nodes, nodes))
    matrix = matrix if directed else matrix + matrix.T
    matrix.data[:] = 1.0
    return matrix


def laplacian(a: Any, count: int) -> np.ndarray:
    """Compute the eigenvectors (n, count) of I - D^-½ A D^-½ with the lowest eigenvalues, except for the first
    eigenvector.

    The largest entry of each eigenvector is positive. If there are fewer than ``count``, the other columns are 0.
    """
    return _lowest(_symmetric(a, _inverse_root(a)), count + 1)[:, 1:]


def magnetic(a: Any, count: int, potential: float) -> np.ndarray:
    """Compute the eigenvectors (n, 2 count) of the magnetic Laplacian, real parts before imaginary parts (Zhang et al.
    2021).

    I - D^-½ (S ∘ exp(2πi q (A - A^T))) D^-½ with S = (A + A^T) / 2 and its row sums D. The largest entry of each
    eigenvector is real and positive.
    """
    s = (a + a.T) / 2
    turned = s.astype(np.complex128)
    difference = (a - a.T).tocsr()
    pairs = turned.tocoo()
    phases = np.asarray(difference[pairs.row, pairs.col]).ravel()
    pairs.data = pairs.data * np.exp(2j * np.pi * potential * phases)
    vectors = _lowest(_symmetric(pairs.tocsr(), _inverse_root(s)), count)
    return np.concatenate((np.real(vectors), np.imag(vectors)), 1)


def _inverse_root(a: Any) -> np.ndarray:
    degrees = np.asarray(a.sum(1)).ravel()
    return np.divide(1.0, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)


def _symmetric(a: Any, root: np.ndarray) -> Any:
    from scipy.sparse import diags

    return diags(root) @ a @ diags(root)


def _lowest(normalised: Any, count: int) -> np.ndarray:
    """Compute the eigenvectors (n, count) of I - ``normalised`` with the lowest eigenvalues, with a fixed sign or
    phase.
    """
    n = normalised.shape[0]
    if n <= max(_DENSE, 2 * count):
        values, vectors = np.linalg.eigh(np.eye(n) - normalised.toarray())
    else:
        from scipy.sparse.linalg import eigsh

        first = np.random.default_rng(0).standard_normal(n).astype(normalised.dtype)
        values, vectors = eigsh(normalised, k=count, which="LA", v0=first)
        values = -values
    vectors = vectors[:, np.argsort(values, kind="stable")[:count]]
    largest = vectors[np.abs(vectors).argmax(0), np.arange(vectors.shape[1])]
    vectors = vectors * (np.abs(largest) / largest)
    return np.pad(vectors, ((0, 0), (0, count - vectors.shape[1])))


def _steps(a: Any) -> Any:
    """Return the transition matrix of a random walk along the edges, D^-1 A; the row of a node without an edge is 0."""
    from scipy.sparse import diags

    degrees = np.asarray(a.sum(1)).ravel()
    return (diags(np.divide(1.0, degrees, out=np.zeros_like(degrees), where=degrees > 0)) @ a).tocsr()


def returns(a: Any, steps: int) -> np.ndarray:
    """Compute the probabilities (n, steps) that a random walk is back at its start after 1, …, ``steps`` steps."""
    step, n = _steps(a).T.tocsr(), a.shape[0]
    probabilities = np.empty((n, steps))
    for begin in range(0, n, _AT_ONCE):
        nodes = np.arange(begin, min(n, begin + _AT_ONCE))
        at = np.zeros((n, len(nodes)))
        at[nodes, np.arange(len(nodes))] = 1.0
        for i in range(steps):
            at = step @ at
            probabilities[nodes, i] = at[nodes, np.arange(len(nodes))]
    return probabilities


def visits(a: Any, steps: int) -> np.ndarray:
    """Compute the expected visits (n, steps) of each node by n random walks, of which one starts at each node.

    Column k holds n times the probability to be at a node after k + 1 steps along the edges from a random node. A walk
    without an edge to follow stays where it is.
    """
    step = _steps(a)
    stuck = np.asarray(step.sum(1)).ravel() == 0
    at, counts = np.ones(a.shape[0]), []
    for _ in range(steps):
        at = step.T @ at + at * stuck
        counts.append(at)
    return np.stack(counts, 1)


def degrees(a: Any, most: int) -> np.ndarray:
    """One-hot encode (n, most + 1) the degree of each node, its number of edges; degrees above ``most`` count as
    ``most``.
    """
    counts = np.minimum(np.asarray(a.sum(1)).ravel().astype(np.int64), most)
    return np.eye(most + 1)[counts]


def neighbourhoods(labels: np.ndarray, edges: np.ndarray, buckets: int) -> np.ndarray:
    """One-hot encode (n, buckets) the hash of a node's label and its neighbours' labels: one round of Weisfeiler &
    Leman 1968.

    labels (n): whole numbers; edges (2, E): sources and targets. The order of nodes and edges does not matter.
    """
    return np.eye(buckets)[(refined(mixed(labels), edges) % np.uint64(buckets)).astype(np.int64)]


def refined(labels: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return new labels (n), uint64, after a round of Weisfeiler & Leman.

    A new label is a hash of the node's label and of the multiset of its neighbours' labels. edges (2, E): sources and
    targets.
    """
    around = np.zeros(len(labels), np.uint64)
    np.add.at(around, edges[1], mixed(labels[edges[0]] ^ _OTHER))
    return mixed(mixed(labels) + around)


_OTHER = np.uint64(0xABCDEF)
"""Number that makes hashes of neighbours differ from hashes of the node itself."""


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Hash whole numbers to uint64 by the function of SplitMix64 (Steele et al. 2014)."""
    z = np.asarray(numbers).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def distances(a: Any, most: int) -> np.ndarray:
    """Compute the lengths (n, n) int16 of the shortest paths; entry (i, j) is the path from node j to node i.

    Lengths above ``most`` are capped at ``most``; -1: no path.
    """
    from scipy.sparse.csgraph import shortest_path

    lengths = shortest_path(a.T, unweighted=True, directed=True)
    return np.where(np.isinf(lengths), -1, np.minimum(lengths, most)).astype(np.int16)
