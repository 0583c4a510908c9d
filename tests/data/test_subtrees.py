"""Weisfeiler–Lehman bags against descriptions of neighbourhoods in plain text, and the wide path that reads them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from qkv.data.graphs.subtrees import levels_of
from qkv.data.processors.graphs import GraphsProcessor
from qkv.models.wide import build_wide
from qkv.spec.models.wide import Subtrees
from qkv.spec.signals.graphs import Graphs
from qkv.tasks.inputs import with_bags

BUCKETS = 1 << 24


def some_graph(seed: int, tags: bool = True) -> dict[str, Any]:
    draw = random.Random(seed)
    count = draw.randint(5, 12)
    edges = [[j, draw.randrange(j)] for j in range(1, count)] + [[0, count - 1]]
    return {"num_nodes": count, "edges": edges, **({"tags": draw.choices("CNO", k=count)} if tags else {})}


def described(graph: dict[str, Any], rounds: int) -> list[int]:
    """Number of nodes of each different neighbourhood, of all rounds, in order of size."""
    count, near = graph["num_nodes"], [set[int]() for _ in range(graph["num_nodes"])]
    for a, b in graph["edges"]:
        near[a].add(b)
        near[b].add(a)
    own = [str(tag) for tag in graph.get("tags", map(len, near))]
    found = Counter[str]()
    for number in range(rounds + 1):
        found.update(f"{number}: {each}" for each in own)
        own = [f"{own[i]}({' '.join(sorted(own[j] for j in near[i]))})" for i in range(count)]
    return sorted(found.values())


def processor_of(graphs: list[dict[str, Any]]) -> GraphsProcessor:
    return GraphsProcessor(GraphsProcessor(Graphs(scaling="standard")).fitted(graphs))


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_labels_are_alike_where_neighbourhoods_are(tags: bool, rounds: int) -> None:
    graphs = [some_graph(seed, tags) for seed in range(8)]
    processor = processor_of(graphs)
    first = processor.spec.num_simple
    for graph in graphs:
        bag = processor.bag(processor.encode(graph), Subtrees(rounds=rounds, buckets=BUCKETS))
        assert sorted(bag.counts[first:].astype(int).tolist()) == described(graph, rounds)


def test_the_bag_of_a_renumbered_graph_is_the_same() -> None:
    graph = some_graph(3)
    order = np.random.default_rng(0).permutation(graph["num_nodes"])
    other = {
        "num_nodes": graph["num_nodes"],
        "edges": [[int(order[b]), int(order[a])] for a, b in graph["edges"]],
        "tags": np.array(graph["tags"])[np.argsort(order)].tolist(),
    }
    processor = processor_of([graph])
    one, two = (processor.bag(processor.encode(each), Subtrees()) for each in (graph, other))
    np.testing.assert_array_equal(one.ids, two.ids)
    np.testing.assert_allclose(one.counts, two.counts, rtol=1e-6)


def test_whole_features_are_labels_and_others_have_levels() -> None:
    features = csr_matrix(np.array([[1.0, 0.2], [0.0, 0.24], [1.0, 9.0]]))
    found = levels_of(features, np.array([True, False]), np.array([0.5, 1.2]), np.array([0.5, 1.0]))
    assert found.tolist() == [[1.0, -1.0], [0.0, -1.0], [1.0, 2.0]]
    edges = [[0, 1]]
    graphs = [{"edges": edges, "features": [[a, b], [1 - a, b]]} for a, b in ((1, 0.5), (0, 2.25), (1, 80.0))]
    assert processor_of(graphs).spec.whole == (True, False)


def test_outputs_are_a_sum_over_simple_features_and_logarithms_of_counts() -> None:
    graphs = [some_graph(seed) for seed in range(4)]
    processor = processor_of(graphs)
    part = Subtrees(rounds=2, buckets=64).of_processor(processor.spec)
    wide: Any = build_wide(part, 3)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        wide.table.copy_(torch.randn(wide.table.shape, generator=draw))
        wide.mean.copy_(torch.randn(wide.mean.shape, generator=draw))
    encoded = [processor.encode(graph) for graph in graphs]
    bags = [processor.bag(each, part) for each in encoded]
    found = wide(with_bags(processor.signal(encoded), bags))
    for row, bag in zip(found, bags, strict=True):
        first = processor.spec.num_simple or 0
        expected = wide.bias.double().clone()
        for place, (number, count) in enumerate(zip(bag.ids.tolist(), bag.counts.tolist(), strict=True)):
            value = count - float(wide.mean[place]) if place < first else np.log1p(count)
            expected += value * wide.table[number].double()
        torch.testing.assert_close(row.double(), expected, rtol=1e-4, atol=1e-3)
