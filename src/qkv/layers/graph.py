"""``Graph``: edges between the nodes of a batch of graphs; ``GraphSignal``: a signal with these edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.ops.graphs import SampledEdges


@dataclass(frozen=True)
class Graph:
    """Edges between the positions of B rows of N nodes, padding included.

    edges (2, E): source and target of each edge, as indices b · N + n into the flattened rows, without self-loops and
    duplicates. distances (B, N, N): number of edges on a shortest path from node j (third axis) to node i (second
    axis), capped at a maximum; -1 without a path. pairs (2, P): pairs of nodes for which a head predicts an edge, as
    indices like those in ``edges``. distances and pairs are None unless a part of the model reads them. sampled: node
    degrees in the whole graph, if ``edges`` is a sample of its edges.
    """

    edges: Tensor
    distances: Tensor | None = None
    pairs: Tensor | None = None
    sampled: SampledEdges | None = None

    def to(self, device: torch.device | str) -> Self:
        """Copy the graph to ``device``."""
        distances, pairs = (None if each is None else each.to(device) for each in (self.distances, self.pairs))
        sampled = None if self.sampled is None else self.sampled.to(device)
        return type(self)(self.edges.to(device), distances, pairs, sampled)


@dataclass(frozen=True)
class GraphSignal(Signal):
    """Rows of nodes. graph: edges between them; None for sets of nodes without edges."""

    by_rows: ClassVar[bool] = False
    graph: Graph | None = None
