"""Mixers over the edges of graphs: sums over edges against dense products, padding, and renumbered nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.contracts.graph_samples import GRAPH_TWO_WAY
from tests.contracts.samples import WIDTH, describe
from tests.contracts.subjects import scrambled
from torch import Tensor

from qkv.layers.context import Context
from qkv.layers.graph import Graph, GraphSignal
from qkv.mixers.registry import build_branch
from qkv.models.build import build
from qkv.ops.graphs import edge_weights
from qkv.spec.branches import Attention
from qkv.spec.masks import Full
from qkv.spec.mixers.graphs import GraphAttention, Propagation, SumAggregation
from qkv.spec.model import Model
from qkv.spec.parts import ShortestPath

SIZES = (5, 3)
EDGES = torch.tensor([[0, 1, 1, 2, 2, 3, 5, 6, 6, 7], [1, 0, 2, 1, 3, 2, 6, 5, 7, 6]])
"""Two paths, 0 - 1 - 2 - 3 with a lone node 4, and 5 - 6 - 7, in two rows of five positions."""


def module(part: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return scrambled(build_branch(part, WIDTH), torch.float64).eval()


def context(edges: Tensor = EDGES, visible: Tensor | None = None) -> Context:
    return Context(torch.arange(5)[None], torch.tensor(SIZES), graph=Graph(edges), visible=visible)


def some() -> Tensor:
    return torch.randn(2, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def dense() -> Tensor:
    """(2, 5, 5): True where a node (second axis) reads another or itself."""
    found = torch.eye(10, dtype=torch.bool)
    found[EDGES[1], EDGES[0]] = True
    return torch.stack((found[:5, :5], found[5:, 5:]))


def test_attention_over_edges_is_attention_to_visible_neighbours() -> None:
    part = GraphAttention(num_heads=4, num_kv_heads=2, temperature=0.7)
    sparse = module(part)
    same = module(Attention(mask=Full(), num_heads=4, num_kv_heads=2, temperature=0.7))
    same.load_state_dict(sparse.state_dict())
    x, y = some().requires_grad_(), some().requires_grad_()
    seen, _ = sparse(x, context())
    expected, _ = same(y, replace(context(EDGES[:, :0], dense()), graph=None))
    for row, size in enumerate(SIZES):
        torch.testing.assert_close(seen[row, :size], expected[row, :size], rtol=1e-12, atol=1e-12)
    for out in (seen, expected):
        (out[0].sum() + (out[1, :3] ** 2).sum()).backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("directed", [False, True])
def test_sums_are_a_product_with_the_adjacency_matrix(directed: bool) -> None:
    edges = EDGES[:, ::2] if directed else EDGES
    a = torch.zeros(10, 10, dtype=torch.float64)
    a[edges[1], edges[0]] = 1.0
    branch, x = module(SumAggregation(hidden=7)), some()
    with torch.no_grad():
        branch.eps.fill_(0.3)
    flat = 1.3 * x.flatten(0, 1) + a @ x.flatten(0, 1)
    hidden = (flat @ branch.up.weight.T + branch.up.bias).clamp(min=0)
    expected = (hidden @ branch.down.weight.T + branch.down.bias).view(2, 5, WIDTH)
    torch.testing.assert_close(branch(x, context(edges))[0], expected, rtol=1e-12, atol=1e-12)


def test_sums_tell_multisets_apart_that_means_do_not() -> None:
    """A star of three leaves and one of two, all nodes alike: the mean over neighbours is the same (Xu et al. 2019)."""
    edges = torch.tensor([[1, 2, 3, 6, 7], [0, 0, 0, 5, 5]])
    x = torch.ones(2, 5, WIDTH, dtype=torch.float64)
    found = module(SumAggregation())(x, context(edges))[0]
    assert not torch.allclose(found[0, 0], found[1, 0])


@pytest.mark.parametrize("directed", [False, True])
def test_propagation_is_a_product_with_the_normalised_matrix(directed: bool) -> None:
    part = Propagation(steps=2, restart=0.2)
    edges = EDGES[:, ::2] if directed else EDGES
    a = torch.eye(10, dtype=torch.float64)
    a[edges[1], edges[0]] = 1.0
    matrix = a.sum(1).rsqrt().diag() @ a @ a.sum(0).rsqrt().diag()
    branch, x = module(part), some()
    y = flat = x.flatten(0, 1)
    for _ in range(2):
        y = 0.8 * matrix @ y + 0.2 * flat
    expected = (y @ branch.output.weight.T + branch.output.bias).view(2, 5, WIDTH)
    torch.testing.assert_close(branch(x, context(edges))[0], expected, rtol=1e-12, atol=1e-12)


def test_the_softmax_over_edges_has_no_overflow() -> None:
    scores = torch.tensor([[900.0], [-900.0], [-900.0]])
    assert edge_weights(scores, torch.tensor([0, 0, 1]), 2)[:, 0].tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("part", GRAPH_TWO_WAY, ids=describe)
def test_padding_and_other_graphs_of_a_batch_do_not_matter(part: Any) -> None:
    branch, x = module(part), some()
    together, _ = branch(x, context())
    x[1, 3:] = 7.0
    alone, _ = branch(x[1:, :3], Context(torch.arange(3)[None], graph=Graph(EDGES[:, 6:] - 5)))
    torch.testing.assert_close(together[1, :3], alone[0], rtol=1e-12, atol=1e-12)


RELATIVE = Attention(mask=Full(), relative=ShortestPath(max_distance=2))


@pytest.mark.parametrize("read", [True, False])
def test_shortest_paths_have_a_bias_by_length(read: bool) -> None:
    """Without a graph, every two nodes are neighbours."""
    branch, x = module(RELATIVE), some()[:1, :4]
    distances = torch.tensor([[[0, 1, 2, 3], [1, 0, 1, -1], [2, 1, 0, 1], [3, -1, 1, 0]]])
    rows = torch.tensor([[[0, 1, 2, 2], [1, 0, 1, 3], [2, 1, 0, 1], [2, 3, 1, 0]]]) if read else 1 - torch.eye(4).long()
    q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in branch.qkv(x).split(WIDTH, -1))
    bias = branch.relative.table[rows.expand(1, 4, 4)].permute(0, 3, 1, 2)
    expected = branch.output(((q @ k.transpose(-1, -2) / 2 + bias).softmax(-1) @ v).transpose(1, 2).flatten(2))
    given = Context(torch.arange(4)[None], graph=Graph(EDGES[:, :0], distances) if read else None)
    torch.testing.assert_close(branch(x, given)[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["graph", "set"])
def test_renumbered_nodes_have_renumbered_answers(kind: str) -> None:
    """A set has no edges: attention without positions; a graph has all mixers of graphs, and path lengths."""
    mixers = [
        "attention(2, mask=full, relative=shortest_path)",
        "graph_attention(2)",
        "propagation",
        "global_attention",
    ]
    spec = Model.parse(
        {
            "width": 8,
            "init_std": 0.5,
            "frontend": {"kind": "nodes", "num_columns": 3, "distances": 2},
            "blocks": [{"branches": mixers if kind == "graph" else ["attention(2, mask=full)", "feed_forward(16)"]}],
            "head": {"kind": "tokens", "num_classes": 4},
        }
    )
    model, pooled = (
        build(s).double().eval()
        for s in (spec, spec.changed(head=Model.parse({"head": "classification(num_classes=4)"}).head))
    )
    generator = torch.Generator().manual_seed(5)
    x, order = torch.randn(1, 4, 3, generator=generator).double(), torch.tensor([2, 0, 3, 1])
    distances = (torch.arange(4)[:, None] - torch.arange(4)).abs()[None]
    place = torch.empty(4, dtype=torch.long)
    place[order] = torch.arange(4)
    whole = GraphSignal(x, graph=Graph(EDGES[:, :6], distances) if kind == "graph" else None)
    turned = Graph(place[EDGES[:, :6]], distances[:, order][:, :, order])
    moved = GraphSignal(x[:, order], graph=turned if kind == "graph" else None)
    torch.testing.assert_close(model(moved)[0], model(whole)[0][:, order], rtol=0, atol=1e-10)
    torch.testing.assert_close(pooled(moved)[0], pooled(whole)[0], rtol=0, atol=1e-10)
    assert not torch.allclose(model(GraphSignal(x[:, order], graph=whole.graph))[0], model(moved)[0]) or kind == "set"
