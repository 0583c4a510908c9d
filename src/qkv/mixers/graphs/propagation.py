"""Propagation over the edges of a graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points
from qkv.layers.pooling import pooled
from qkv.ops.documents import documents
from qkv.ops.dropout import dropout
from qkv.ops.graphs import normalised, propagated
from qkv.spec.mixers import graphs as spec
from qkv.spec.register import implements


@implements(spec.Propagation)
class Propagation(Branch):
    """Propagation Â^k x W + b over the edges of a graph (GCN, APPNP, GCNII).

    Options: restarts x_{t+1} = (1 - α) Â x_t + α x_0, and a map for each step. Without a graph all nodes of a row are
    neighbours: Â x is the mean of the row.
    """

    causal = False
    rewindable = False
    part: spec.Propagation

    def __init__(self, part: spec.Propagation, width: int):
        super().__init__(part, width)
        self.part, self.shares = part, part.shares()
        self.maps = nn.ModuleList(Linear(width, width, bias=False) for _ in self.shares)
        self.output = Linear(width, width, bias=part.bias) if part.linear else None

    def points(self) -> Points:
        return {"propagated": "vectors after all steps of propagation (B, N, D)"}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        x = first = dropout(x, self.part.dropout, self.training)
        for step in range(self.part.steps):
            x = self._step(x, context)
            x = x if not self.part.restart else (1 - self.part.restart) * x + self.part.restart * first
            x = self._mapped(x, step) if self.shares else x
        x = self.offer(context.tap, "propagated", x)
        return x if self.output is None else self.output(x), state

    def _mapped(self, x: Tensor, step: int) -> Tensor:
        """Apply the map of a step, relu(x ((1 - β) I + β W)), then dropout in training."""
        mapped = torch.lerp(x, self.maps[step](x), self.shares[step]).relu()
        return dropout(mapped, self.part.dropout, self.training)

    def _step(self, x: Tensor, context: Context) -> Tensor:
        graph = context.graph
        if graph is None:
            return _mean(x, context)
        nodes = x.shape[:2].numel()
        weighted = context.once(
            ("propagation", x.dtype), lambda: normalised(graph.edges, nodes, x.dtype, graph.sampled)
        )
        return propagated(x.flatten(0, 1), weighted).view_as(x)

    def ending(self) -> nn.Module | None:
        return self.output


def _mean(x: Tensor, context: Context) -> Tensor:
    """Return, at each position, the mean of the unpadded vectors of its row or packed document."""
    if context.segments is None:
        return pooled(x, context.lengths, "mean")[:, None].expand_as(x)
    apart = documents(context.segments)
    return pooled(apart.apart(x), apart.lengths, "mean")[apart.number]
