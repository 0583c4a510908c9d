"""Columns of nodes made into vectors; signs and phases of eigenvectors are random in training alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qkv.frontends.nodes import NodesFrontend
from qkv.layers.context import Context
from qkv.layers.graph import Graph, GraphSignal
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.spec.model import Model, Stack
from qkv.spec.signals.graphs import Nodes
from qkv.system.errors import UserError

CONTEXT = Context(torch.arange(3)[None])


def built(**fields: Any) -> NodesFrontend:
    part = Nodes(num_columns=5, **fields)
    frontend = NodesFrontend(part, Stack(frontend=part, blocks=()), 5).double()
    frontend.map.weight.data = torch.eye(5).double()
    return frontend


def signal(rows: int = 2) -> Signal:
    return Signal(torch.randn(rows, 3, 5, generator=torch.Generator().manual_seed(1)))


def test_the_vectors_are_a_linear_map_of_the_columns() -> None:
    frontend, given = built(input_dropout=0.5, dropout=0.5, eigenvectors=2).eval(), signal()
    frontend.map.bias.data = torch.arange(5.0).double()
    torch.testing.assert_close(frontend(given, CONTEXT), given.values.double() + torch.arange(5.0).double())


def test_signs_are_random_per_graph_and_eigenvector() -> None:
    frontend, given = built(eigenvectors=2, first_eigenvector=1).train(), signal(64)
    torch.manual_seed(0)
    seen = frontend(given, CONTEXT) - frontend.map.bias
    ratio = seen / given.values
    assert (ratio[..., [0, 3, 4]] - 1).abs().max() < 1e-6
    signs = ratio[..., 1:3].round()
    torch.testing.assert_close(ratio[..., 1:3], signs)
    assert (signs == signs[:, :1]).all()
    pairs = {tuple(pair) for pair in signs[:, 0].tolist()}
    assert pairs == {(a, b) for a in (-1.0, 1.0) for b in (-1.0, 1.0)}


def test_phases_turn_real_and_imaginary_parts_together() -> None:
    frontend, given = built(eigenvectors=2, first_eigenvector=1, phases=True).train(), signal()
    torch.manual_seed(0)
    seen = frontend(given, CONTEXT) - frontend.map.bias
    before, after = (torch.complex(x[..., 1:3].double(), x[..., 3:5].double()) for x in (given.values, seen))
    turned = after / before
    torch.testing.assert_close(turned.abs(), torch.ones_like(turned.abs()))
    torch.testing.assert_close(turned, turned[:, :1].expand_as(turned))
    assert (turned[0, 0] - turned[1, 0]).abs().min() > 0.01


def test_dropped_nodes_have_no_columns() -> None:
    frontend, given = built(node_dropout=0.5).train(), signal(64)
    torch.manual_seed(0)
    seen = frontend(given, CONTEXT) - frontend.map.bias
    gone = (seen.abs() < 1e-12).all(-1)
    assert 60 < int(gone.sum()) < 132
    torch.testing.assert_close(seen[~gone], 2 * given.values.double()[~gone])


def test_random_graphs_are_read_with_their_distances() -> None:
    spec = Model.parse(
        {
            "width": 8,
            "frontend": {"kind": "nodes", "num_columns": 4, "distances": 3},
            "blocks": [{"branches": ["graph_attention(2)", "attention(2, mask=full, relative=shortest_path)"]}],
            "head": "tokens(3)",
        }
    )
    model = build(spec)
    given = model.frontend.random(2, 5, torch.Generator().manual_seed(0))
    assert model(given)[0].shape == (2, 5, 3)
    assert given.graph is not None
    assert given.graph.edges.shape == (2, 20)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (Signal(torch.zeros(1, 3, 4)), r"nodes are float32 of the shape \(1, 3, 4\); give floats \(graphs, nodes, 5\)"),
        (Signal(torch.zeros(1, 3, 5, dtype=torch.long)), r"nodes are int64 of the shape"),
        (
            GraphSignal(torch.zeros(1, 3, 5), graph=Graph(torch.tensor([[0], [3]]))),
            "an edge has the node 3; node indices over all rows are 0 to 2",
        ),
        (
            GraphSignal(torch.zeros(1, 3, 5), graph=Graph(torch.zeros(3, 2, dtype=torch.long))),
            r"edges have the shape \(3, 2\)",
        ),
        (GraphSignal(torch.zeros(1, 3, 5), graph=Graph(torch.zeros(2, 2))), "edges are float32, and they index nodes"),
        (
            GraphSignal(torch.zeros(1, 3, 5), graph=Graph(torch.zeros(2, 0).long(), torch.zeros(1, 2, 2).long())),
            r"distances have the shape \(1, 2, 2\); give \(1, 3, 3\)",
        ),
    ],
)
def test_other_values_are_refused(given: Signal, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        built().embed(given)
