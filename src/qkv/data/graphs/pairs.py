"""Pairs of nodes of an undirected graph, with and without an edge: splits, random samples, and features.

Pairs (P, 2) have the smaller node first. The code of a pair (u, v) is u · n + v for n nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_ROUNDS = 50
"""Maximum number of rounds of drawing random pairs; pairs with an edge are dropped in each round."""
_ALL = 2_000
"""Maximum number of nodes for which all pairs are listed if random drawing finds too few."""


def undirected(edges: np.ndarray) -> np.ndarray:
    """Return the distinct undirected pairs (P, 2) of ``edges`` (E, 2), sorted and without self-loops."""
    pairs = edges[edges[:, 0] != edges[:, 1]]
    return np.unique(np.sort(pairs, 1), axis=0).reshape(-1, 2)


def codes(pairs: np.ndarray, nodes: int) -> np.ndarray:
    """Return one integer per pair (i, j), i · nodes + j, by which pairs are compared and sorted: (P)."""
    return pairs[:, 0].astype(np.int64) * nodes + pairs[:, 1]


def without_edge(edges: np.ndarray, nodes: int, count: int, draw: np.random.Generator) -> np.ndarray:
    """Draw at most ``count`` different random pairs (P, 2) without an edge; ``edges``: sorted codes of the edges."""
    drawn_codes = np.zeros(0, np.int64)
    for _ in range(_ROUNDS):
        ends = np.sort(draw.integers(nodes, size=(2 * count + 8, 2)), 1)
        drawn = codes(ends[ends[:, 0] != ends[:, 1]], nodes)
        drawn_codes = np.concatenate((drawn_codes, drawn[~np.isin(drawn, edges)]))
        drawn_codes = drawn_codes[np.sort(np.unique(drawn_codes, return_index=True)[1])][:count]
        if len(drawn_codes) == count:
            break
    if len(drawn_codes) < count and nodes <= _ALL:
        every = codes(np.stack(np.triu_indices(nodes, 1), 1), nodes)
        drawn_codes = draw.permutation(every[~np.isin(every, edges)])[:count]
    return np.stack((drawn_codes // nodes, drawn_codes % nodes), 1)


def parts_of(pairs: np.ndarray, shares: dict[str, float], rest: str) -> dict[str, np.ndarray]:
    """Split pairs at random; return the pairs of each split by name.

    ``shares``: fraction of each split, which gets at least one pair; the split ``rest`` gets the other pairs. A fixed
    seed makes the result the same in every run.
    """
    order, parts, begin = np.random.default_rng(0).permutation(len(pairs)), dict[str, np.ndarray](), 0
    for name, share in shares.items():
        end = begin + max(1, round(share * len(pairs)))
        parts[name], begin = pairs[np.sort(order[begin:end])], end
    return {rest: pairs[np.sort(order[begin:])], **parts}


def pair_features(a: Any, columns: Any, pairs: np.ndarray) -> np.ndarray:
    """Compute four features (P, 4) of pairs of nodes.

    1. ln(1 + number of common neighbours). 2. ln(1 + sum of 1 / ln(degree) over the common neighbours) (Adamic & Adar
    2003). 3. Sum of ln(1 + degree) of the two nodes, without the edge between them. 4. Cosine of the two nodes'
    ``columns``.

    a: symmetric adjacency matrix (n, n) of scipy. columns: sparse matrix (n, C).
    """
    degrees = np.asarray(a.sum(1)).ravel()
    first, second = a[pairs[:, 0]], a[pairs[:, 1]]
    both = first.multiply(second).tocsr()
    weights = np.where(degrees > 1, 1 / np.log(np.maximum(degrees, 2)), 0.0)
    joined = np.asarray(a[pairs[:, 0], pairs[:, 1]]).ravel()
    ends = sum(np.log1p(degrees[end] - joined) for end in pairs.T)
    norms = np.sqrt(np.asarray(columns.multiply(columns).sum(1)).ravel())
    products = np.asarray(columns[pairs[:, 0]].multiply(columns[pairs[:, 1]]).sum(1)).ravel()
    sizes = norms[pairs[:, 0]] * norms[pairs[:, 1]]
    alike = np.divide(products, sizes, out=np.zeros(len(pairs)), where=sizes > 0)
    shared = np.asarray(both.sum(1)).ravel()
    return np.stack((np.log1p(shared), np.log1p(both @ weights), ends, alike), 1)
