"""Attention over the edges of a graph."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from qkv.layers.branch import State
from qkv.layers.context import Context
from qkv.layers.graph import Graph
from qkv.layers.observable import Points, standard
from qkv.mixers.attention.attention import KeyValueAttention
from qkv.mixers.projections import offer_outputs
from qkv.ops.attention.choose import attention
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.graphs import edge_attention, with_loops
from qkv.spec.mixers import graphs as spec
from qkv.spec.register import implements


@implements(spec.GraphAttention)
class GraphAttention(KeyValueAttention):
    """Attention of each node to its neighbours and itself, computed in O(E) by sums over the E edges.

    Without a graph all nodes are neighbours: attention without a mask.
    """

    part: spec.GraphAttention

    def __init__(self, part: spec.GraphAttention, width: int):
        super().__init__(part, width)  # type: ignore[arg-type]
        self.part = part

    def points(self) -> Points:
        return standard("q", "k", "v", "head_outputs")

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q, k, v = self.projected(x, context)
        dropout = self.part.dropout if self.training else 0.0
        if context.graph is not None:
            out = self._sparse((q, k, v), context.graph, context, dropout)
            return self.output(offer_outputs(self, out, context, self.value_dim)), state
        k, v, state, sites = self.with_past(k, v, context, state)
        out = attention(q, k, v, AttentionProblem(self.mask, sites, self.scale, dropout=dropout))
        out = self.offer(context.tap, "head_outputs", out)
        return self.output(out.transpose(1, 2).flatten(2)), state

    def _sparse(self, projected: tuple[Tensor, ...], graph: Graph, context: Context, dropout: float) -> Tensor:
        rows, _, count, _ = projected[0].shape
        q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in projected)  # (B N, H or G, features)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        edges: Any = context.once("edges with loops", lambda: with_loops(graph.edges, rows * count))
        return edge_attention(q, k, v, edges, self.scale, dropout).flatten(1).unflatten(0, (rows, count))
