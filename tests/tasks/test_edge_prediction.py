"""Prediction of edges: what is hidden, learned, ranked, predicted and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from tests.tasks.nodes import write, write_tables

import qkv
from qkv.choosing.automatic_task import automatic_task
from qkv.data.graphs.encodings import adjacency
from qkv.data.graphs.pairs import pair_features, undirected, without_edge
from qkv.models.build import build
from qkv.runs.storage.checkpoint import weights
from qkv.spec.errors import SpecError
from qkv.spec.files.overrides import override
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.graphs.edge_prediction import EdgeDataset
from qkv.tasks.metrics.ranking_metrics import ranking
from qkv.tasks.registry import build_task

GRAPH = networkx.connected_caveman_graph(6, 5)


def edge_file(folder: Path) -> Path:
    path = folder / "edges.csv"
    path.write_text("a,b\n" + "".join(f"n{a},n{b}\n" for a, b in GRAPH.edges))
    return path


def recipe(source: str | Path, *changes: str, **task: Any) -> Recipe:
    given = Recipe.parse(
        {
            "data": {"source": str(source), "processor": "graphs(degree=4)", "validation_fraction": 0.2},
            "task": {"kind": "edge_prediction", "test_fraction": 0.2, **task},
            "model": {
                "width": 8,
                "frontend": "nodes",
                "blocks": [{"branches": ["propagation(2)"], "norm": "none", "residual": "none"}],
                "head": "edges",
                "init_std": 0.3,
            },
            "training": {"steps": 4, "batch_size": 1, "validation": {"every": 2, "batches": None}},
        }
    )
    return override(given, list(changes))


def opened(given: Recipe) -> EdgeDataset:
    dataset = build_task(given.task).open(given)
    assert isinstance(dataset, EdgeDataset)
    return dataset


def quiet(event: object) -> None:
    """Show no progress."""


def sets(pairs: Any) -> set[tuple[int, ...]]:
    return {tuple(sorted(pair)) for pair in np.asarray(pairs).tolist()}


def test_the_graph_that_is_read_has_no_edge_that_is_asked_for(tmp_path: Path) -> None:
    dataset = opened(recipe(edge_file(tmp_path), hidden=0.25, negatives=2))
    every = {
        tuple(sorted((dataset.table.names.index(f"n{a}"), dataset.table.names.index(f"n{b}")))) for a, b in GRAPH.edges
    }
    parts = {split: sets(pairs) for split, pairs in dataset.pairs.items()}
    assert set.union(*parts.values()) == every
    assert sum(map(len, parts.values())) == len(every) == 60
    assert [len(parts[split]) for split in ("train", "validation", "test")] == [36, 12, 12]
    for step in range(3):
        batch = dataset.batch(step)
        asked, read = batch.extras["pairs"], sets(batch.input.graph.edges.T)  # type: ignore[union-attr]
        hidden, others = sets(asked[:9]), sets(asked[9:])
        assert hidden < parts["train"]
        assert read == parts["train"] - hidden
        ends = np.array(sorted(read)).ravel()
        assert batch.input.values[0].argmax(-1).tolist() == np.minimum(np.bincount(ends, minlength=30), 4).tolist()
        assert len(others) == 18
        assert not others & parts["train"]
        assert batch.targets.tolist() == [1.0] * 9 + [0.0] * 18
        again = opened(recipe(edge_file(tmp_path), hidden=0.25, negatives=2)).batch(step)
        assert np.array_equal(again.extras["pairs"], asked)
    assert not np.array_equal(dataset.batch(1).extras["pairs"], dataset.batch(2).extras["pairs"])
    (held,) = dataset.rows("validation")
    assert sets(held.input.graph.edges.T) == parts["train"]  # type: ignore[union-attr]
    assert sets(held.extras["pairs"][:12]) == parts["validation"]
    assert not sets(held.extras["pairs"][12:]) & every


def test_features_of_pairs_are_those_of_networkx() -> None:
    graph = networkx.gnm_random_graph(12, 30, seed=1)
    pairs = undirected(np.array([*list(graph.edges)[:8], (0, 11), (2, 7), (3, 5)]))
    columns = adjacency(np.array([(0, 1), (1, 2), (3, 4)]), 12, directed=False)
    found = pair_features(adjacency(np.array(graph.edges), 12, directed=False), columns, pairs)
    for (a, b), row in zip(pairs.tolist(), found, strict=True):
        ((_, _, expected),) = networkx.adamic_adar_index(graph, [(a, b)])
        shared, own = len(list(networkx.common_neighbors(graph, a, b))), int(graph.has_edge(a, b))
        ends = np.log1p(graph.degree(a) - own) + np.log1p(graph.degree(b) - own)
        one, other = columns[a].toarray()[0], columns[b].toarray()[0]
        size = np.linalg.norm(one) * np.linalg.norm(other)
        alike = one @ other / size if size else 0.0
        np.testing.assert_allclose(row, [np.log1p(shared), np.log1p(expected), ends, alike], atol=1e-12)


def test_all_pairs_without_an_edge_are_found_where_few_are_left() -> None:
    pairs = np.stack(np.triu_indices(9, 1), 1)
    known = np.sort(pairs[4:, 0] * 9 + pairs[4:, 1])
    assert sets(without_edge(known, 9, 50, np.random.default_rng(0))) == sets(pairs[:4])


def test_metrics_are_those_of_the_library() -> None:
    draw = np.random.default_rng(0)
    targets, scores = draw.integers(0, 2, 80), draw.integers(0, 30, 80) / 10  # with ties
    found = ranking(targets, scores)
    assert found["auc"] == pytest.approx(100 * roc_auc_score(targets, scores))
    assert found["average_precision"] == pytest.approx(100 * average_precision_score(targets, scores))
    bound = sorted(scores[targets == 0])[-20]
    assert found["hits_at_20"] == pytest.approx(100 * np.mean([s > bound for s in scores[targets == 1]]))


def test_scores_do_not_depend_on_the_order_of_the_nodes(tmp_path: Path) -> None:
    dataset = opened(recipe(edge_file(tmp_path)))
    model, pairs = build(dataset.recipe.model, 1).double().eval(), dataset.pairs["test"]
    both = [model(dataset.signal_of(dataset.without(pairs), ends))[0] for ends in (pairs, pairs[:, ::-1])]
    torch.testing.assert_close(*both, atol=1e-12, rtol=0)
    assert both[0].shape == (12, 1)


def test_a_run_is_not_worse_than_common_neighbours_predicts_and_resumes(tmp_path: Path) -> None:
    given = recipe(edge_file(tmp_path), "wide=pairs")
    run = qkv.train(given, tmp_path / "whole", on_event=quiet)
    qkv.train(override(given, ["training.steps=2"]), tmp_path / "halved", on_event=quiet)
    resumed = qkv.train(given, tmp_path / "halved", on_event=quiet)
    for name, tensor in weights(run.model, run.wide).items():
        assert torch.equal(tensor, weights(resumed.model, resumed.wide)[name]), name
    assert run.evaluation is not None
    found = run.evaluation["splits"]["validation"]
    best = max(found["figures"][f"auc_of_{name}"] for name in ("common_neighbours", "adamic_adar"))
    assert found["figures"]["auc"] >= best - 1e-6 > 50
    table = next(section for section in found["sections"] if section["title"] == "Contestants")
    assert {row[0] for row in table["rows"]} >= {"common neighbours", "Adamic-Adar", "propagation"}
    near, far = qkv.predict(run, [{"source": "n1", "target": "n3"}, {"source": "n3", "target": "n18"}])
    assert near["probability"] > far["probability"]
    assert {near["answer"], far["answer"]} <= {"edge", "no edge"}
    with pytest.raises(UserError, match="has no node 'x'"):
        qkv.predict(run, [{"source": "x", "target": "n1"}])


def test_edges_of_another_graph_are_hidden_and_predicted(tmp_path: Path) -> None:
    given = recipe(edge_file(tmp_path))
    run = qkv.train(given, tmp_path / "run", on_event=quiet)
    own, task = opened(given), build_task(given.task)
    again = task.open_other(run.recipe, run.vocabulary, str(tmp_path / "edges.csv"), own)
    assert isinstance(again, EdgeDataset)
    assert sets(again.pairs["data"]) == sets(own.pairs["validation"]) | sets(own.pairs["test"])
    (batch,) = again.rows("data")
    assert sets(batch.input.graph.edges.T) == sets(own.pairs["train"])  # type: ignore[union-attr]
    (tmp_path / "ring.csv").write_text("a,b\n" + "".join(f"{i},{(i + 1) % 20}\n" for i in range(20)))
    figures = qkv.evaluate(run, data=str(tmp_path / "ring.csv"))
    assert figures["targets"] == 16  # a fifth of the edges each for validation and test, and as many pairs without one
    assert "auc_of_common_neighbours" in figures
    with pytest.raises(UserError, match="nodes have 4 features, and the model reads 0"):
        qkv.evaluate(run, data=str(write(tmp_path)))


def test_other_graphs_are_read_and_a_recipe_is_chosen(tmp_path: Path) -> None:
    files = write(tmp_path), write_tables(tmp_path)
    assert [opened(recipe(source)).nodes for source in files] == [24, 24]
    np.savez(tmp_path / "bare.npz", edges=np.array(GRAPH.edges))
    assert opened(recipe(tmp_path / "bare.npz")).nodes == 30
    chosen = automatic_task("edge_prediction", {"source": str(edge_file(tmp_path))})
    assert chosen.name == "edges"
    dataset = opened(chosen)
    assert build(dataset.recipe.model, 1)(dataset.batch(0).input)[0].shape == (len(dataset.batch(0).targets), 1)


def test_what_tells_the_answers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="lengths of shortest paths reveal the hidden edges"):
        opened(recipe(edge_file(tmp_path), "data.processor.distances=3"))
    with pytest.raises(UserError, match="held-out edges are taken from the graph itself"):
        opened(recipe(edge_file(tmp_path), "data.validation=other.csv"))
    (tmp_path / "few.csv").write_text("a,b\n1,2\n2,3\n")
    with pytest.raises(UserError, match="has 2 edges, and at least 6 are needed"):
        opened(recipe(tmp_path / "few.csv"))
    (tmp_path / "none.csv").write_text("a,b\n")
    with pytest.raises(UserError):
        opened(recipe(tmp_path / "none.csv"))
    with pytest.raises(SpecError, match="'pairs' adds to the logits of edges; use the head 'edges'"):
        override(recipe(write(tmp_path)), ["wide=pairs", "task=node_classification", "model.head=tokens"])
