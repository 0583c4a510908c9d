"""``Graph``: edges between the nodes of a batch of graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from qkv.ops.graphs import SampledEdges


@dataclass(frozen=True)
class Graph:
    """Edges between the positions of B rows of N nodes, padding included.

    edges (2, E): source and target of each edge, as indices b · N + n into the flattened rows; without self-loops and
    repetitions. distances (B, N, N): number of edges on a shortest path from the node of the third axis to that of the
    second, or a bound that longer paths share; -1 without a path. pairs (2, P): pairs of positions, as indices like
    those of edges, for which a head predicts an edge. None unless a part of the model reads them. sampled: facts about
    the whole graph if the edges are a sample of its edges.
    """

    edges: Tensor
    distances: Tensor | None = None
    pairs: Tensor | None = None
    sampled: SampledEdges | None = None

    def to(self, device: torch.device | str) -> Self:
        """Copy of the graph on ``device``."""
        distances, pairs = (None if each is None else each.to(device) for each in (self.distances, self.pairs))
        sampled = None if self.sampled is None else self.sampled.to(device)
        return type(self)(self.edges.to(device), distances, pairs, sampled)
