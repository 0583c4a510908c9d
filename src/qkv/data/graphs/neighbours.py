"""Sample the neighbours of nodes, hop by hop (GraphSAGE, Hamilton et al. 2017)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ALL = -1
"""Number of neighbours that means all neighbours."""


class Sample(NamedTuple):
    """Part of a graph around some nodes.

    nodes (m): indices of the nodes in the whole graph, sorted. edges (2, e): indices into ``nodes``. factors (e):
    number of edges into the target in the whole graph, divided by the number of sampled edges into it.
    """

    nodes: np.ndarray
    edges: np.ndarray
    factors: np.ndarray


class Neighbourhoods:
    """Edges into each node of a graph. edges (2, E): sources and targets. into, out (n): numbers of edges into and out
    of each node.
    """

    def __init__(self, edges: np.ndarray, nodes: int):
        order = np.argsort(edges[1], kind="stable")
        self._sources, self.nodes = edges[0][order].astype(np.int64), nodes
        self.into, self.out = (np.bincount(edges[end], minlength=nodes) for end in (1, 0))
        self._begins = np.concatenate(([0], np.cumsum(self.into)))

    def around(self, centres: np.ndarray, fanouts: tuple[int, ...], draw: np.random.Generator | None = None) -> Sample:
        """Sample the neighbours of the nodes ``centres``, in as many hops as ``fanouts`` has entries.

        Hop i uses at most ``fanouts[i]`` random edges into each node. Without ``draw``, it uses all edges.
        """
        expanded, frontier = np.zeros(self.nodes, bool), np.unique(centres)
        edges = [(np.zeros(0, np.int64),) * 2]
        for most in fanouts:
            hop = self._edges(frontier, ALL if draw is None else most, draw)
            expanded[frontier] = True
            edges.append(hop)
            reached = np.unique(hop[0])
            frontier = reached[~expanded[reached]]
        sources, targets = (np.concatenate(side) for side in zip(*edges, strict=True))
        nodes = np.unique(np.concatenate((centres, sources)))
        factors = self.into[targets] / np.bincount(targets, minlength=self.nodes)[targets]
        return Sample(nodes, np.stack([np.searchsorted(nodes, side) for side in (sources, targets)]), factors)

    def _edges(self, nodes: np.ndarray, most: int, draw: np.random.Generator | None) -> tuple[np.ndarray, np.ndarray]:
        """Return (sources, targets) of at most ``most`` random edges into each of ``nodes``."""
        counts = self.into[nodes]
        targets, first = np.repeat(nodes, counts), np.cumsum(counts) - counts
        rank = np.arange(len(targets)) - np.repeat(first, counts)
        places = np.repeat(self._begins[nodes], counts) + rank
        if draw is not None and most != ALL:
            order = np.lexsort((draw.random(len(targets)), np.repeat(np.arange(len(nodes)), counts)))
            indices = np.sort(order[rank < most])
            targets, places = targets[indices], places[indices]
        return self._sources[places], targets
