"""Front end for the nodes of graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.frontends.border import check_graph
from qkv.frontends.frontend import Frontend
from qkv.layers.context import Context
from qkv.layers.graph import Graph, GraphSignal
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.layers.signal import Signal
from qkv.ops.dropout import dropout
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.graphs import Nodes
from qkv.system.errors import UserError


@implements(Nodes)
class NodesFrontend(Frontend):
    """Front end for node features x (B, N, C) of B graphs -> norm(x W + b) (B, N, D).

    Dropout applies to the features and to the output. In training, eigenvectors are multiplied by a random sign, or a
    random phase if they are complex, one per graph and eigenvector (Dwivedi & Bresson 2020).
    """

    part: Nodes

    def __init__(self, part: Nodes, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack)
        if part.num_columns is None:
            raise UserError("model.frontend.num_columns is not set: set it, or build the model together with its data")
        self.map = Linear(part.num_columns, width)
        self.norm = build_norm(part.norm, width)

    def check(self, signal: Signal) -> None:
        shape, columns = tuple(signal.values.shape), self.part.num_columns
        if len(shape) != 3 or shape[2] != columns or not signal.values.is_floating_point():
            raise UserError(
                f"nodes are {str(signal.values.dtype).removeprefix('torch.')} of the shape {shape}; "
                f"give floats (graphs, nodes, {columns})"
            )

        graph = self.graph(signal)
        if graph is not None:
            check_graph(graph, signal.num_rows, self.count(signal), signal.values.device)

    def graph(self, signal: Signal) -> Graph | None:
        return GraphSignal.of(signal).graph

    def forward(self, signal: Signal, context: Context) -> Tensor:
        x = signal.values.to(self.map.weight.dtype)
        if self.training and self.part.eigenvectors:
            x = _turned(x, self.part)
        x = self.norm(self.map(self._dropped(x)), context)
        return dropout(x, self.part.dropout, self.training)

    def _dropped(self, x: Tensor) -> Tensor:
        """Apply dropout to features of x (B, N, C), and to whole nodes (DropNode, Feng et al. 2020)."""
        if self.training and self.part.node_dropout:
            x = x * dropout(x.new_ones(*x.shape[:2], 1), self.part.node_dropout)
        return dropout(x, self.part.input_dropout, self.training)

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        """Create ``rows`` ring graphs of ``length`` nodes with random features."""
        assert self.part.num_columns is not None
        nodes = torch.arange(rows * length).view(rows, length)
        after = nodes.roll(-1, 1)
        edges = torch.stack((torch.cat((nodes, after)).flatten(), torch.cat((after, nodes)).flatten()))
        distances = torch.zeros(rows, length, length, dtype=torch.long) if self.part.distances else None
        return GraphSignal(
            torch.randn(rows, length, self.part.num_columns, generator=generator), graph=Graph(edges, distances)
        )


def _turned(x: Tensor, part: Nodes) -> Tensor:
    """Multiply each eigenvector in each row of x (B, N, C) by a random sign, or a random phase if complex."""
    first, count = part.first_eigenvector, part.eigenvectors
    shape = (x.shape[0], 1, count)
    if not part.phases:
        signs = torch.randint(2, shape, device=x.device).to(x.dtype) * 2 - 1
        turned = x[..., first : first + count] * signs
    else:
        angle = 2 * torch.pi * torch.rand(shape, device=x.device, dtype=x.dtype)
        real, imaginary = x[..., first : first + 2 * count].chunk(2, -1)
        turned = torch.cat(
            (real * angle.cos() - imaginary * angle.sin(), real * angle.sin() + imaginary * angle.cos()), -1
        )
    return torch.cat((x[..., :first], turned, x[..., first + turned.shape[-1] :]), -1)
