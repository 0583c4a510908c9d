"""``Graph``: edges between the nodes of a batch of graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Graph:
    """Edges between the positions of B rows of N nodes, padding included.

    edges (2, E): source and target of each edge, as indices b · N + n into the flattened rows; without self-loops and
    repetitions. distances (B, N, N): number of edges on a shortest path from the node of the third axis to that of the
    second, or a bound that longer paths share; -1 without a path. None unless a part of the model reads them.
    """

    edges: Tensor
    distances: Tensor | None = None

    def to(self, device: torch.device | str) -> Self:
        """Copy of the graph on ``device``."""
        distances = None if self.distances is None else self.distances.to(device)
        return type(self)(self.edges.to(device), distances)
