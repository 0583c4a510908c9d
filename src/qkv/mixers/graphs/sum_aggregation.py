"""Sums over the neighbours in a graph, followed by an MLP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.graph import Graph
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points, standard
from qkv.layers.pooling import pooled
from qkv.ops.documents import documents
from qkv.ops.dropout import dropout
from qkv.ops.graphs import Weighted, propagated
from qkv.spec.mixers import graphs as spec
from qkv.spec.register import implements


@implements(spec.SumAggregation)
class SumAggregation(Branch):
    """Sum over neighbours and an MLP: W_2 relu(W_1 ((1 + ε) x_i + Σ_{j -> i} x_j) + b_1) + b_2 (GIN, Xu et al. 2019).

    ε is initially 0. Without a graph all nodes of a row are neighbours: the sum is over all other nodes. If edges are
    sampled, each edge has the weight (incoming edges of its target) / (sampled ones).
    """

    causal = False
    rewindable = False
    part: spec.SumAggregation

    def __init__(self, part: spec.SumAggregation, width: int):
        super().__init__(part, width)
        hidden = part.hidden_at(width)
        self.part = part
        self.eps = nn.Parameter(torch.zeros(()))
        self.up = Linear(width, hidden, bias=part.bias)
        self.down = Linear(hidden, width, bias=part.bias)

    def points(self) -> Points:
        return standard("activation")

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        hidden = self.up((1 + self.eps) * x + self._neighbours(x, context)).relu()
        hidden = self.offer(context.tap, "activation", hidden)
        return self.down(dropout(hidden, self.part.dropout, self.training)), state

    def _neighbours(self, x: Tensor, context: Context) -> Tensor:
        """Sum the vectors of the neighbours of each node: (B, N, D)."""
        if context.graph is None:
            return _total(x, context) - x
        return propagated(x.flatten(0, 1), _weighted(context.graph, x.dtype)).view_as(x)

    def ending(self) -> nn.Module:
        return self.down


def _weighted(graph: Graph, dtype: torch.dtype) -> Weighted:
    """Return the edges of the graph with weight 1 or, if they are sampled, with weights that correct for it."""
    if graph.sampled is not None:
        return Weighted(graph.edges, graph.sampled.factors)
    return Weighted(graph.edges, torch.ones(graph.edges.shape[1], dtype=dtype, device=graph.edges.device))


def _total(x: Tensor, context: Context) -> Tensor:
    """Return, at each position, the sum of the unpadded vectors of its row or packed document."""
    if context.segments is None:
        return _summed(x, context.lengths)[:, None].expand_as(x)
    apart = documents(context.segments)
    return _summed(apart.apart(x), apart.lengths)[apart.number]


def _summed(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Sum the first ``lengths`` vectors of each row: (B, D)."""
    counts = x.new_full((len(x),), x.shape[1]) if lengths is None else lengths.to(x.dtype)
    return pooled(x, lengths, "mean") * counts[:, None]
