"""Benchmark of graphs: ten folds of a table of graphs, with an inner hold-out, and the ten splits of Wisconsin.

    QKV_DATA=folder python benchmarks/graphs.py mutag proteins webkb-wisconsin

Tables (Errica et al. 2020): of each of ten stratified folds, the rest is divided 9 : 1 into training and validation
parts; the model of highest validation accuracy is tested on the fold. A model without structure (a bag of nodes)
and a logistic regression on the same bag are tested beside it. Wisconsin (Pei et al. 2020): the same models with
encodings that tell the direction of links, and with those that do not, on its ten splits.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import qkv
from qkv.data.records.named import named_tables
from qkv.data.records.table import Row
from qkv.report.table import print_table
from qkv.spec.recipe import Recipe
from side_by_side import parser, say_where

Rows = list[dict[str, Any]]
FOLDS = 10
COLUMNS = ("data", "model", "accuracy", "standard error", "folds")
_FEED = "feed_forward"
MODELS: dict[str, dict[str, Any]] = {
    "propagation": {"blocks": [{"branches": ["propagation", _FEED], "dropout": 0.2}], "num_layers": 3},
    "transformer": {
        "blocks": [
            {"branches": ["attention(4, mask=full)", "propagation"], "order": "parallel", "dropout": 0.2},
            {"branches": [_FEED], "dropout": 0.2},
        ]
    },
    "bag of nodes": {"blocks": [{"branches": [_FEED], "dropout": 0.2}]},
}
BLIND = "bag of nodes"
"""Model without structure."""


def graph_recipe(model: str, files: Mapping[str, str], steps: int) -> Recipe:
    """Recipe of a model for tables of graphs."""
    encodings = "" if model == BLIND else "(walk=8, degree=8)"
    head = {"kind": "classification", "pooling": ["mean", "max", "mean_sqrt_len"], "dropout": 0.3}
    return Recipe.parse(
        {
            "data": {**files, "processor": f"graphs{encodings}", "batching": "length_buckets"},
            "task": "classification",
            "model": {"width": 32, "frontend": "nodes", "head": head, "init_std": 0.1, **MODELS[model]},
            "training": _training(steps, 32, 3e-3, 0.05),
        }
    )


def node_recipe(directed: bool, fold: int, steps: int) -> Recipe:
    """Recipe for a split of Wisconsin, with encodings that tell the direction of links or not."""
    encodings = f"graphs(laplacian=8, walk=4, degree=8, directed={str(directed).lower()})"
    return Recipe.parse(
        {
            "data": {"source": "webkb-wisconsin", "processor": encodings},
            "task": {"kind": "node_classification", "fold": fold},
            "model": {
                "width": 64,
                "frontend": "nodes(input_dropout=0.5, dropout=0.5)",
                "blocks": [{"branches": ["attention(4, mask=full)", _FEED], "dropout": 0.5}],
                "head": "tokens(dropout=0.5)",
                "init_std": 0.1,
            },
            "training": _training(steps, 1, 3e-3, 0.5),
        }
    )


def _training(steps: int, batch: int, rate: float, decay: float) -> dict[str, Any]:
    return {
        "steps": steps,
        "batch_size": batch,
        "optimizer": {"kind": "adamw", "lr": rate, "weight_decay": decay},
        "schedule": {"kind": "cosine", "warmup": min(20, steps // 4), "final": 0.05},
        "validation": {"every": max(1, steps // 20), "batches": None, "best": "accuracy"},
    }


def folds(rows: Rows, count: int) -> list[Rows]:
    """Stratified folds: the rows of each label, shuffled, in turns."""
    found: list[Rows] = [[] for _ in range(count)]
    chance, place = random.Random(0), 0
    for label in sorted({row["label"] for row in rows}):
        own = [row for row in rows if row["label"] == label]
        chance.shuffle(own)
        for row in own:
            found[place % count].append(row)
            place += 1
    return found


def quiet(event: object) -> None:
    """Show no progress."""


def trained(recipe: Recipe, folder: Path) -> dict[str, dict[str, float]]:
    """Metrics on the validation and the test part."""
    run = qkv.train(recipe, folder, on_event=quiet)
    return {split: dict(qkv.evaluate(run, split=split)) for split in ("validation", "test")}


def tested(rows: Rows, count: int, steps: int, folder: Path) -> dict[str, list[float]]:
    """Test accuracies of each fold, by model; "chosen": the model of highest validation accuracy."""
    parts, accuracies = folds(rows, FOLDS), dict[str, list[float]]()
    for i in range(count):
        rest = [row for j, part in enumerate(parts) if j != i for row in part]
        held = folds(rest, FOLDS)
        split = {"test": parts[i], "validation": held[0], "source": [row for part in held[1:] for row in part]}
        files = {name: _written(some, folder / f"{i}-{name}.jsonl") for name, some in split.items()}
        found = {name: trained(graph_recipe(name, files, steps), folder / f"{i}-{name}") for name in MODELS}
        chosen = max(found, key=lambda name: found[name]["validation"]["accuracy"])
        blind = found[BLIND]["test"]
        each = {name: figures["test"]["accuracy"] for name, figures in found.items()}
        each |= {"chosen": found[chosen]["test"]["accuracy"], "most frequent": blind["accuracy_of_most_frequent_label"]}
        each["logistic regression on the bag"] = blind["accuracy_of_bag_of_nodes"]
        for name, value in each.items():
            accuracies.setdefault(name, []).append(value)
    return accuracies


def _written(rows: Rows, path: Path) -> str:
    path.write_text("".join(json.dumps({**row["graph"], "label": row["label"]}) + "\n" for row in rows))
    return str(path)


def directions(count: int, steps: int, folder: Path) -> dict[str, list[float]]:
    """Test accuracies on the splits of Wisconsin, by kind of encodings, and of a regression on features alone."""
    accuracies: dict[str, list[float]] = {}
    for fold in range(count):
        for name, directed in (("directed encodings", True), ("undirected encodings", False)):
            figures = trained(node_recipe(directed, fold, steps), folder / f"{fold}-{name}")["test"]
            accuracies.setdefault(name, []).append(figures["accuracy"])
        accuracies.setdefault("features alone", []).append(figures["accuracy_of_features_alone"])
    return accuracies


def known_rows(name: str) -> Rows:
    """Rows of a known table of graphs."""
    return [dict(row.values) for row in named_tables(name)["train"].rows if isinstance(row, Row)]


def small_rows() -> Rows:
    """Rings and stars, for the smoke form."""
    shapes = {"ring": [[0, 1], [1, 2], [2, 3], [3, 0]], "star": [[0, 1], [0, 2], [0, 3]]}
    return [{"graph": {"edges": edges}, "label": label} for label, edges in shapes.items() for _ in range(30)]


def lines(name: str, accuracies: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """Rows of the table: mean and standard error of each model."""
    found = []
    for model, values in accuracies.items():
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        found.append([name, model, f"{statistics.mean(values):.1f}", f"{error:.1f}", str(len(values))])
    return found


def main() -> None:
    """Run the benchmark and print its table."""
    options: argparse.ArgumentParser = parser(__doc__ or "")
    options.add_argument("data", nargs="*", default=["mutag"], help="mutag, proteins, webkb-wisconsin")
    options.add_argument("--folds", type=int, default=FOLDS, help="number of folds or splits that are run")
    options.add_argument("--steps", type=int, default=450)
    given = options.parse_args()
    say_where()
    table: list[list[str]] = []
    for name in given.data:
        with tempfile.TemporaryDirectory() as scratch:
            if given.smoke:
                found = tested(small_rows(), 1, 2, Path(scratch))
            elif name == "webkb-wisconsin":
                found = directions(given.folds, given.steps, Path(scratch))
            else:
                found = tested(known_rows(name), given.folds, given.steps, Path(scratch))
        table += lines(name, found)
    print_table("classification of graphs and nodes", COLUMNS, table)


if __name__ == "__main__":
    main()
