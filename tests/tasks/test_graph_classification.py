"""Classification of graphs: JSON lines, arrays and networkx graphs, by the tasks that read texts and images, too."""

from __future__ import annotations

import gc
import json
import random
import weakref
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import torch

import qkv
from qkv.data.processors.graphs import GraphsProcessor
from qkv.data.processors.processor import build_processor
from qkv.data.records.named import TABLES
from qkv.layers.features import features_of
from qkv.runs.storage.checkpoint import weights
from qkv.spec.files.overrides import override
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.baselines.feature_baselines import feature_accuracy
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.registry import task_of_recipe


def graphs(count: int = 24) -> list[dict[str, Any]]:
    """Rings and stars with the same tags, whose nodes differ in their degrees only."""
    chance, found = random.Random(0), []
    for i in range(count):
        n = chance.randint(4, 7)
        ring = [[a, (a + 1) % n] for a in range(n)]
        edges = ring if i % 2 else [[0, a] for a in range(1, n)]
        tags = [chance.choice("CO") for _ in range(n)]
        found.append({"num_nodes": n, "edges": edges, "tags": tags, "label": "ring" if i % 2 else "star"})
    return found


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "graphs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def recipe(source: str | Path, **data: Any) -> Recipe:
    return Recipe.parse(
        {
            "data": {
                "source": str(source),
                "processor": "graphs(degree=3)",
                "batching": "token_buckets(64)",
                "validation_fraction": 0.25,
                **data,
            },
            "task": "classification",
            "model": {
                "width": 8,
                "frontend": "nodes",
                "blocks": [{"branches": ["propagation", "global_attention"], "order": "parallel"}],
                "head": {"kind": "classification", "pooling": ["mean", "max"]},
                "init_std": 0.3,
            },
            "training": {
                "steps": 30,
                "batch_size": 8,
                "optimizer": {"kind": "adamw", "lr": 1e-2},
                "schedule": "constant",
                "validation": {"every": 15, "batches": None},
            },
        }
    )


def opened(given: Recipe) -> ExampleDataset:
    dataset = task_of_recipe(given).open(given)
    assert isinstance(dataset, ExampleDataset)
    return dataset


def quiet(event: object) -> None:
    """Show no progress."""


def test_a_run_learns_the_structure_answers_and_resumes(tmp_path: Path) -> None:
    rows = graphs()
    given = recipe(write(tmp_path, rows))
    run = qkv.train(given, tmp_path / "run", on_event=quiet)
    figures = qkv.evaluate(run)
    assert figures["accuracy"] == 100
    assert "accuracy_of_subtrees" in figures
    qkv.train(override(given, ["training.steps=15"]), tmp_path / "halved", on_event=quiet)
    again = qkv.train(given, tmp_path / "halved", on_event=quiet)
    weights = again.model.state_dict()
    assert all(tensor.equal(weights[name]) for name, tensor in run.model.state_dict().items())
    answers = qkv.predict(run, [{"graph": networkx.cycle_graph(6)}, {"graph": {"edges": [[0, 1], [0, 2], [0, 3]]}}])
    assert [answer["answer"] for answer in answers] == ["ring", "star"]


def bucket(own: int, others: tuple[int, ...]) -> int:
    """Hash of a neighbourhood by SplitMix64 in whole numbers of Python."""
    most = (1 << 64) - 1

    def mixed(z: int) -> int:
        z = (z + 0x9E3779B97F4A7C15) & most
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & most
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & most
        return z ^ z >> 31

    assert mixed(0) == 0xE220A8397B1DCDAF  # as published
    around = sum(mixed(mixed(other & most) ^ 0xABCDEF) for other in others)
    return mixed((mixed(mixed(own & most)) + around) & most) % 32


def test_the_features_of_a_graph_are_its_sizes_and_sums_and_means_over_its_nodes(tmp_path: Path) -> None:
    dataset = opened(recipe(write(tmp_path, graphs()), processor="graphs(laplacian=1, walk=2)"))
    processor = build_processor(dataset.vocabulary.processors["input"])
    star = {"num_nodes": 4, "edges": [[0, 1], [0, 2], [0, 3]], "tags": ["C", "O", "O", "N"]}
    degrees = [0, 3, 0, 1, 0, 0, 0, 0, 0]
    tags, near, walks = [1, 2], [0.0] * 32, [0, 2]  # an even walk is back from the hub surely, else by chance 1 / 3
    for tag, others, count in ((0, (1, 1, -1), 1), (1, (0,), 2), (-1, (0,), 1)):  # C, O and N, which is unknown
        near[bucket(tag, others)] += count
    sums = [*tags, *degrees, *near, *walks]
    expected = [4, 6, *sums, *(total / 4 for total in sums)]
    found = processor.features(processor.encode(star))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert processor.spec.num_simple == len(expected)


def test_a_run_is_never_worse_than_its_bag_of_nodes_on_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = override(recipe(write(tmp_path, graphs())), ["wide=features", "training.steps=2"])
    calls, own = list[int](), GraphsProcessor.features

    def counted(self: GraphsProcessor, encoded: Any) -> Any:
        calls.append(1)
        return own(self, encoded)

    monkeypatch.setattr(GraphsProcessor, "features", counted)
    dataset = opened(given)
    for batch in (dataset.batch(0), dataset.batch(1), *dataset.rows("validation")):
        assert features_of(batch.input) is not None
    assert len(calls) == len(graphs())  # once for each graph, not for each batch
    run = qkv.train(given, tmp_path / "run", on_event=quiet)
    assert run.evaluation is not None
    validation = run.evaluation["splits"]["validation"]
    table = next(section for section in validation["sections"] if section["title"] == "Contestants")
    assert [row[0] for row in table["rows"]].count("bag of nodes") == 1
    assert validation["figures"]["accuracy"] >= validation["figures"]["accuracy_of_bag_of_nodes"]
    assert qkv.evaluate(qkv.load(tmp_path / "run"))["accuracy"] == validation["figures"]["accuracy"]
    again = qkv.train(given, tmp_path / "again", on_event=quiet)
    assert all(map(torch.equal, weights(run.model, run.wide).values(), weights(again.model, again.wide).values()))


def test_bad_graphs_are_left_out_and_told(tmp_path: Path) -> None:
    rows = graphs()
    rows[0]["edges"] = [[0, 99]]
    rows[1]["edges"] = [*rows[1]["edges"], [0, 0]]
    dataset = opened(recipe(write(tmp_path, rows)))
    told = " ".join(dataset.notes)
    assert "1 of" in told
    assert "joins 0 and 99, but nodes are numbered" in told
    assert "edges left out: 1 from a node to itself" in told
    assert sum(len(dataset.examples[split]) for split in dataset.splits) == 23
    with pytest.raises(UserError, match="joins 0 and 99"):
        opened(recipe(write(tmp_path, rows), bad_rows="refuse"))


def test_arrays_of_many_graphs_are_read(tmp_path: Path) -> None:
    rows, starts = graphs(12), [0]
    for row in rows:
        starts.append(starts[-1] + row["num_nodes"])
    edges = [[a + start, b + start] for row, start in zip(rows, starts, strict=False) for a, b in row["edges"]]
    arrays = {
        "graph_ptr": np.array(starts),
        "graph_labels": np.array([row["label"] == "ring" for row in rows], np.int8),
        "node_tags": np.array([tag == "O" for row in rows for tag in row["tags"]], np.int8),
        "edges": np.array(edges),
    }
    path = tmp_path / "many.npz"
    np.savez(path, **arrays)
    by_array, by_line = opened(recipe(path)), opened(recipe(write(tmp_path, rows)))
    assert by_array.vocabulary.labels == ("0", "1")
    seen, expected = (
        sorted((len(e.fields.value), e.fields.value.edges.T.tolist()) for split in d.splits for e in d.examples[split])
        for d in (by_array, by_line)
    )
    assert seen == expected
    for changed, sentence in (
        ({"graph_ptr": np.array([0, 3])}, "graph_ptr does not say where the nodes of 12 graphs begin and end"),
        ({"edges": np.array([[0, 999]])}, "an edge has a node outside of 0 to"),
        ({"node_tags": np.zeros(2)}, "2 node_tags are given for"),
    ):
        np.savez(path, **{**arrays, **changed})
        with pytest.raises(UserError, match=sentence):
            opened(recipe(path))


def test_a_table_in_memory_and_one_line_choose_a_recipe(tmp_path: Path) -> None:
    rows = [{"graph": networkx.Graph(row["edges"]), "label": row["label"]} for row in graphs()]
    run = qkv.train(rows, tmp_path / "run", task="classify", quick=True, on_event=quiet)
    assert run.recipe.model.frontend.kind == "nodes"
    assert run.recipe.data.processor is not None
    assert run.recipe.data.processor.kind == "graphs"


@pytest.mark.parametrize("mixer", ["propagation", "global_attention", "graph_attention", "attention(2, mask=full)"])
@pytest.mark.parametrize("directed", [False, True])
def test_answers_do_not_change_when_nodes_are_renumbered(mixer: str, directed: bool, tmp_path: Path) -> None:
    """For whole models in fp64, with front end, encodings and head; a set is a graph without edges."""
    encodings = {"walk": 3, "degree": 3, "directed": directed, "both_ways": not directed}
    given = recipe(write(tmp_path, graphs()), processor={"kind": "graphs", **encodings})
    given = override(given, [f"model.blocks=[{{branches: ['{mixer}', feed_forward(8)]}}]"])
    dataset = opened(given)
    model = qkv.build(dataset.recipe.model).double().eval()
    processor = build_processor(dataset.vocabulary.processors["input"])
    order, answers = np.random.default_rng(1).permutation(7), list[torch.Tensor]()
    for edges in ([[0, 1], [1, 2], [2, 0], [3, 1], [4, 5]], []):
        tags = np.array([*"CCOOCOC"])
        graph = {"num_nodes": 7, "edges": edges, "tags": tags.tolist()}
        renumbered = {
            "num_nodes": 7,
            "edges": [[int(order[a]), int(order[b])] for a, b in edges],
            "tags": tags[np.argsort(order)].tolist(),
        }
        signal = processor.signal([processor.encode(graph), processor.encode(renumbered)])
        with torch.no_grad():
            first, second = model(signal)[0]
        torch.testing.assert_close(first, second, rtol=0, atol=1e-10)
        answers.append(first)
    assert not torch.allclose(*answers)


def test_a_data_set_is_freed_after_its_baselines(tmp_path: Path) -> None:
    dataset = opened(recipe(write(tmp_path, graphs())))
    labels, held_out = (dataset.records[split] for split in ("train", "validation"))
    truth = [row["label"] for row in held_out]
    figures = feature_accuracy(dataset, "validation", [row["label"] for row in labels], truth)
    assert figures.keys() == {"accuracy_of_subtrees"}
    kept = weakref.ref(dataset)
    del dataset
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("changes", [[], ["data.processor.walk=0", "data.processor.degree=0"]])
def test_a_model_of_graphs_is_tuned_on_graphs_with_other_tags(changes: list[str], tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    for place in (first, other):
        place.mkdir()
    short = ["training.steps=2", "training.minutes=null", "candidates={}", "training.precision=fp32"]
    given = {"task": "classify", "on_event": quiet}
    run = qkv.train(str(write(first, graphs())), tmp_path / "run", [*short, *changes], **given)
    rows = [{**row, "tags": ["N" if tag == "C" else tag for tag in row["tags"]]} for row in graphs()]
    still = ["training.steps=1", "training.minutes=null", "training.optimizer.lr=1e-30", "training.precision=fp32"]
    tuned = qkv.train(str(write(other, rows)), tmp_path / "tuned", still, start=str(tmp_path / "run"), **given)
    assert tuned.vocabulary.processors == run.vocabulary.processors
    before, after = run.model.state_dict(), tuned.model.state_dict()
    assert after
    for name in after:
        torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=1e-4)
    dataset = task_of_recipe(tuned.recipe).open(tuned.recipe, tuned.vocabulary)
    nodes = sum(tag == "N" for row in rows for tag in row["tags"])
    assert f"{nodes} nodes have a tag that did not occur in training" in " ".join(dataset.notes)


def test_known_tables_name_their_files() -> None:
    assert {"mutag", "proteins"} <= TABLES.keys()
    assert [file.name for file in TABLES["mutag"].splits["train"]] == ["mutag.npz"]
