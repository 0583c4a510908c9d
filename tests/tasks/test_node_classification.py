"""Classification of the nodes of one graph: what is read, learned, predicted and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tests.tasks.nodes import NODES, arrays, recipe, write, write_tables
from torch.nn import functional as F

import qkv
from qkv.data.batching.batch import IGNORED
from qkv.models.build import build
from qkv.spec.errors import SpecError
from qkv.spec.files.overrides import override
from qkv.system.errors import UserError
from qkv.tasks.graphs import node_classification
from qkv.tasks.graphs.node_classification import NodeDataset
from qkv.tasks.registry import build_task
from qkv.tasks.task import Totals


def opened(given: Any) -> tuple[Any, NodeDataset, Any]:
    task = build_task(given.task)
    dataset = task.open(given)
    assert isinstance(dataset, NodeDataset)
    return task, dataset, build(dataset.recipe.model, 1).double().eval()


def wide(signal: Any) -> Any:
    """Copy of a signal with values in fp64."""
    return replace(signal, values=signal.values.double())


def quiet(event: object) -> None:
    """Show no progress."""


def test_the_loss_is_over_the_nodes_of_the_split(tmp_path: Path) -> None:
    task, dataset, model = opened(recipe(write(tmp_path)))
    given, batch = arrays(), dataset.batch(0)
    logits = model(batch.input)[0][0]
    index = torch.from_numpy(given["train_index"])
    expected = F.cross_entropy(logits[index], torch.from_numpy(given["labels"])[index], reduction="sum")
    torch.testing.assert_close(task.summed_loss(model, batch), expected)
    (held_out,) = dataset.rows("validation")
    asked = np.flatnonzero(held_out.targets[0].numpy() != IGNORED)
    assert asked.tolist() == sorted(given["val_index"].tolist())
    assert dataset.splits == ("train", "validation", "test")
    assert torch.equal(batch.input.values[0], torch.from_numpy(given["features"]).float())


def test_parts_hold_every_node_once_and_the_edges_between_them(tmp_path: Path) -> None:
    given = recipe(write(tmp_path), {"kind": "node_classification", "parts": 3})
    _, dataset, _ = opened(given)
    epoch = [dataset.batch(step) for step in range(3)]
    nodes = [batch.extras["nodes"] for batch in epoch]
    assert sorted(np.concatenate(nodes).tolist()) == list(range(NODES))
    assert [batch.num_targets for batch in epoch] == [3, 3, 2]
    pairs = {(a, b) for a, b in arrays()["edges"].tolist()} | {(b, a) for a, b in arrays()["edges"].tolist()}
    for batch, own in zip(epoch, nodes, strict=True):
        seen = {tuple(own[end] for end in edge) for edge in batch.input.graph.edges.t().tolist()}
        assert seen == {(a, b) for a, b in pairs if a in own and b in own}
    again = opened(given)[1]
    assert again.batch(4).extras["nodes"].tolist() == dataset.batch(4).extras["nodes"].tolist()
    assert again.batch(4).extras["nodes"].tolist() != nodes[1].tolist()
    assert sum(batch.num_targets for batch in dataset.rows("validation")) == 8


def sampled(source: Path, *fanouts: int, **training: Any) -> Any:
    blocks = [{"branches": ["propagation(2, restart=0.1)"], "norm": "none"}, {"branches": ["graph_attention(2)"]}]
    task = {"kind": "node_classification", "fanouts": list(fanouts)}
    return override(recipe(source, task, **training), [f"model.blocks={json.dumps(blocks)}", "model.num_layers=null"])


def test_all_neighbours_of_as_many_hops_give_the_outputs_of_the_whole_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    _, whole, _ = opened(recipe(path))
    _, dataset, model = opened(sampled(path, -1, -1, -1, batch_size=3))
    with torch.no_grad():
        expected = model(wide(whole.batch(0).input))[0][0]
        for step in range(4):
            batch = dataset.batch(step)
            asked = batch.targets[0] != IGNORED
            nodes = batch.extras["nodes"][asked.numpy()]
            assert len(nodes) == (3, 3, 2, 3)[step]
            assert len(batch.extras["nodes"]) < NODES
            found = model(wide(batch.input))[0][0, asked]
            torch.testing.assert_close(found, expected[nodes], atol=1e-10, rtol=0)
        monkeypatch.setattr(node_classification, "_MOST_NODES", 8)
        seen = list[int]()
        for signal, inside, places in dataset.around(np.arange(NODES)[::-1]):
            assert signal.values.shape[1] <= 8 or len(places) == 1
            seen += places.tolist()
            found = model(wide(signal))[0][0, inside]
            torch.testing.assert_close(found, expected[NODES - 1 - places], atol=1e-10, rtol=0)
        assert seen == list(range(NODES))
        fewer = opened(sampled(path, -1, -1, batch_size=3))[1].batch(0)
        asked = fewer.targets[0] != IGNORED
        near = model(wide(fewer.input))[0][0, asked]
        assert (near - expected[fewer.extras["nodes"][asked.numpy()]]).abs().max() > 1e-6


def test_sampled_neighbours_are_few_weighted_and_drawn_by_seed_and_step(tmp_path: Path) -> None:
    path = write(tmp_path, edges=np.array([(0, i) for i in range(1, NODES)]))
    dataset, again = (opened(sampled(path, 2, 1, batch_size=8))[1] for _ in range(2))
    for step in range(3):
        one, other = dataset.batch(step).input, again.batch(step).input
        assert torch.equal(one.graph.edges, other.graph.edges)  # type: ignore[union-attr]
        assert torch.equal(one.values, other.values)
        target = one.graph.edges[1]  # type: ignore[union-attr]
        facts = one.graph.sampled  # type: ignore[union-attr]
        counts = torch.bincount(target)
        assert counts.max() <= 2
        torch.testing.assert_close(facts.factors, facts.into[target].double() / counts[target])
    (hub,) = np.flatnonzero(facts.into.numpy() == NODES - 1)
    assert facts.factors[target == hub].tolist() in ([11.5, 11.5], [23.0])
    assert not torch.equal(dataset.batch(0).input.values, dataset.batch(1).input.values)


def test_a_run_on_sampled_neighbours_resumes_and_answers(tmp_path: Path) -> None:
    given = sampled(write(tmp_path), 2, 2, 2, batch_size=3)
    run = qkv.train(given, tmp_path / "whole", on_event=quiet)
    qkv.train(override(given, ["training.steps=2"]), tmp_path / "halved", on_event=quiet)
    resumed = qkv.train(given, tmp_path / "halved", on_event=quiet)
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    one, two, three = qkv.predict(run, [{"node": "3"}, {"node": "20"}, {"node": "3"}])
    assert one == three != two
    with pytest.raises(SpecError, match="a batch is a part or is sampled by fanouts"):
        override(given, ["task.parts=2"])


def test_a_run_learns_answers_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    given = recipe(write(tmp_path), steps=40, optimizer={"kind": "adamw", "lr": 3e-2})
    run = qkv.train(given, tmp_path / "whole", on_event=quiet)
    qkv.train(override(given, ["training.steps=20"]), tmp_path / "halved", on_event=quiet)
    resumed = qkv.train(given, tmp_path / "halved", on_event=quiet)
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    figures = qkv.evaluate(run, split="test")
    assert figures["accuracy"] >= figures["accuracy_of_most_frequent_label"]
    answers = qkv.predict(run, [{"node": "3"}, {"node": 20}])
    with torch.no_grad():
        whole = run.model.eval()(opened(given)[1].batch(0).input)[0][0].softmax(-1)
    for answer, node in zip(answers, (3, 20), strict=True):
        assert answer["answer"] == str(int(whole[node].argmax()))
        assert answer["probability"] == pytest.approx(float(whole[node].max()), abs=1e-5)
    with pytest.raises(UserError, match="has no node 'n3'"):
        qkv.predict(run, [{"node": "n3"}])
    other = qkv.evaluate(run, data=str(write(tmp_path / "halved", labels=arrays()["labels"][::-1].copy())))
    assert other["targets"] == NODES
    assert "points" in (tmp_path / "whole" / "evaluation.json").read_text()


def test_the_baselines_are_the_usual_label_and_a_regression_on_features(tmp_path: Path) -> None:
    task, dataset, model = opened(recipe(write(tmp_path)))
    given = arrays()
    train, held = np.sort(given["train_index"]), np.sort(given["val_index"])
    x = given["features"].astype(np.float32)
    x = 10 * x / np.sqrt(np.square(x[train]).sum(1).mean())
    fitted = LogisticRegression(max_iter=1000).fit(x[train], given["labels"][train])
    seen = Totals()
    seen.add(task.observe(model.float(), next(dataset.rows("validation"))))
    figures = task.evaluate(model, dataset, "validation", seen, dataset.recipe).figures
    assert figures["accuracy_of_features_alone"] == pytest.approx(
        100 * fitted.score(x[held], given["labels"][held]), abs=0.01
    )
    usual = np.bincount(given["labels"][train]).argmax()
    assert figures["accuracy_of_most_frequent_label"] == 100 * (given["labels"][held] == usual).mean()


def test_the_regression_on_features_competes_with_the_network(tmp_path: Path) -> None:
    given = arrays()
    features = given["features"] + 2 * np.eye(2)[given["labels"]].repeat(2, 1)
    path, train = write(tmp_path, features=features), {"steps": 2, "checkpoints": {"every": 1}}
    chosen = override(recipe(path, **train), ["wide=columns"])
    run = qkv.train(chosen, tmp_path / "run", on_event=quiet)
    wide = run.wide
    assert wide is not None
    figures = qkv.evaluate(run)
    assert figures["accuracy"] >= figures["accuracy_of_features_alone"] == 100
    task, dataset, _ = opened(chosen)
    task.wide = wide
    (batch,) = dataset.rows("validation")

    @torch.no_grad()
    def logits(deep: float, linear: float) -> torch.Tensor:
        wide.set_share(deep, linear)
        return task.outputs(run.model.eval(), batch.input)

    own = logits(0.0, 1.0)
    torch.testing.assert_close(own, (batch.input.values - wide.mean) / wide.deviation @ wide.table + wide.bias)
    torch.testing.assert_close(logits(0.5, 2.0), 0.5 * logits(1.0, 0.0) + 2.0 * own)
    with pytest.raises(SpecError, match="'columns' adds to the logits of each node of a graph"):
        override(chosen, ["task=classification", "model.head=classification"])


def test_two_tables_are_read(tmp_path: Path) -> None:
    source = write_tables(tmp_path, "n1,n1\nn1,n2\nn0,n99\n")
    _, dataset, _ = opened(recipe(source, processor={"kind": "graphs", "scaling": "standard"}))
    assert dataset.vocabulary.labels == ("left", "right")
    values = dataset.batch(0).input.values[0].double().numpy()
    assert values.shape == (NODES, 3)
    np.testing.assert_allclose(values.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(values.std(0), 1, atol=1e-4)
    assert sorted(dataset.table.splits["validation"].tolist()) == sorted(arrays()["val_index"].tolist())
    told = " ".join(dataset.notes)
    for note in (
        "1 of 28 edges",
        "line 29: 'n99' is not a node",
        "edges left out: 1 from a node to itself, 1 repeated",
    ):
        assert note in told
    with pytest.raises(UserError, match=r"edges of .* cannot be used: line 29: 'n99' is not a node"):
        opened(override(recipe(source), ["data.bad_rows=refuse"]))


def test_labels_are_held_out_where_no_split_is_given(tmp_path: Path) -> None:
    path = tmp_path / "plain.npz"
    labels = arrays()["labels"].copy()
    labels[[5, 20]] = -1
    np.savez(path, edges=arrays()["edges"], labels=labels)
    _, dataset, _ = opened(override(recipe(path), ["data.validation_fraction=0.2"]))
    assert [len(dataset.table.splits[split]) for split in ("train", "validation")] == [18, 4]
    assert sum(labels[dataset.table.splits["validation"]]) == 2
    assert dataset.batch(0).input.values.shape == (1, NODES, 1)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"edges": np.array([[0, 24]])}, "edge 1 joins 0 and 24, but nodes are numbered 0 to 23"),
        ({"edges": np.array([[0.5, 1]])}, "edges are not whole numbers"),
        ({"features": np.full((NODES, 2), np.nan)}, "a feature of node 0 is not a finite number"),
        ({"features": np.ones((3, 2))}, "the graph has 24 nodes, but features of 3"),
        ({"labels": np.ones(NODES)}, "labels are not one whole number per node"),
        ({"labels": np.zeros(0, np.int64)}, "has the split|has no node|outside of 0"),
        ({"labels": np.zeros(NODES, np.int64)}, "have 1 label; give at least two"),
        ({"val_index": np.array([99])}, "the split validation has a node outside of 0 to 23"),
        ({"val_index": arrays()["train_index"]}, "8 nodes of .* are in both training and validation"),
        ({"edges": np.array([{"a": 1}], object)}, "is not an .npz file of plain arrays"),
    ],
)
def test_hostile_files_are_refused_with_one_sentence(tmp_path: Path, changed: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        opened(recipe(write(tmp_path, **changed)))


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.npz").write_bytes(write(tmp_path).read_bytes()[:200])
    (tmp_path / "a.txt").write_text("no graph")
    for source, sentence in (
        (tmp_path / "cut.npz", "is not an .npz file of plain arrays"),
        (tmp_path / "a.txt", "is no graph with labelled nodes"),
        (tmp_path / "none.npz", "does not exist"),
        ("a.csv | ", "should name two files"),
    ):
        with pytest.raises(UserError, match=sentence):
            opened(recipe(source))
    many = recipe(write(tmp_path), {"kind": "node_classification", "parts": 9})
    with pytest.raises(SpecError, match=r"task\.parts: 9 parts are more than the 8 training nodes"):
        opened(many)


def test_a_front_end_of_texts_reads_no_graph(tmp_path: Path) -> None:
    given = recipe(tmp_path / "x.npz")
    with pytest.raises(SpecError, match="the front end 'text' does not read graphs; use one of nodes"):
        override(given, ["model.frontend=text"])
    with pytest.raises(SpecError, match="reads a graph, but the front end 'text' reads none; use 'nodes'"):
        override(given, ["model.frontend=text", "data.processor=null"])


def test_consistency_is_its_formula(tmp_path: Path) -> None:
    given = {"kind": "node_classification", "consistency": {"samples": 3, "weight": 0.7, "temperature": 0.4}}
    task, dataset, model = opened(recipe(write(tmp_path), given))
    model, batch = model.train(), dataset.batch(0)
    torch.manual_seed(5)
    loss = task.summed_loss(model, batch)
    torch.manual_seed(5)
    passes = [model(batch.input)[0][0].softmax(-1).detach() for _ in range(3)]
    assert not torch.equal(passes[0], passes[1]), "dropout differs from pass to pass"
    asked = [i for i, target in enumerate(batch.targets[0].tolist()) if target != IGNORED]
    expected = sum(-float(p[i, batch.targets[0, i]].log()) for p in passes for i in asked) / 3
    for i in range(NODES):
        mean = [sum(float(p[i, c]) for p in passes) / 3 for c in range(2)]
        sharp = [each ** (1 / 0.4) for each in mean]
        apart = sum((float(p[i, c]) - sharp[c] / sum(sharp)) ** 2 for p in passes for c in range(2)) / 3
        expected += 0.7 * len(asked) * apart / NODES
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-9)


def test_consistency_without_dropout_and_sharpening_adds_nothing(tmp_path: Path) -> None:
    given = {"kind": "node_classification", "consistency": {"temperature": 1.0}}
    still = override(recipe(write(tmp_path), given), ["model.frontend.dropout=0"])
    task, dataset, model = opened(still)
    alone, _, _ = opened(override(still, ["task.consistency=null"]))
    found = [float(each.summed_loss(model.train(), dataset.batch(0)).detach()) for each in (task, alone)]
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_a_low_temperature_of_consistency_is_the_most_probable_answer(tmp_path: Path) -> None:
    given = {"kind": "node_classification", "consistency": {"samples": 2, "temperature": 1e-6}}
    task, dataset, model = opened(recipe(write(tmp_path), given))
    loss = task.summed_loss(model.train(), dataset.batch(0))
    loss.backward()
    assert bool(loss.isfinite())
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("wrong", ["samples=1", "temperature=0", "weight=0", "temperature=2"])
def test_wrong_consistency_is_refused(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"task\.consistency\." + wrong.partition("=")[0]):
        override(recipe(write(tmp_path)), ["task.consistency={}", f"task.consistency.{wrong}"])
