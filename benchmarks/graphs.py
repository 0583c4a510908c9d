"""Benchmark of graphs: ten folds of a table of graphs, with an inner hold-out, and the ten splits of Wisconsin.

    QKV_DATA=folder python benchmarks/graphs.py mutag proteins webkb-wisconsin --results folds.jsonl --page page.md

Tables (Errica et al. 2020): of each of ten stratified folds, the rest is divided 9 : 1 into training and validation
parts; of the models whose validation loss is within one standard error of the least, the mean of the probabilities is
tested on the fold. Models have a wide path over simple features.
Two models without structure are tested beside them: a network of single nodes, pooled, and a logistic regression on
numbers and shares of their tags. Wisconsin (Pei et al. 2020): the same models with encodings that tell the direction of
links, and with those that do not, on its ten splits.

``--results`` keeps one line for each finished fold, so that the same command continues after a kill; ``--page`` writes
the table of all lines of that file into a page, beside its rows of other data.
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

import numpy as np
from sklearn.linear_model import LogisticRegression

import qkv
from qkv.data.records.named import named_tables
from qkv.data.records.table import Row
from qkv.report.table import print_table
from qkv.spec.recipe import Recipe
from side_by_side import parser, say_where, with_rows_of, write_table

Rows = list[dict[str, Any]]
Accuracies = dict[str, dict[str, float]]
"""Accuracies in % by split and model."""
FOLDS = 10
COLUMNS = ("data", "model", "accuracy", "standard error", "folds")
_FEED = "feed_forward"
MODELS: dict[str, dict[str, Any]] = {
    "propagation": {
        "blocks": [{"branches": ["propagation", _FEED], "dropout": 0.2}],
        "num_layers": 3,
    },
    "attention and propagation": {
        "blocks": [
            {"branches": ["attention(4, mask=full)", "propagation"], "order": "parallel", "dropout": 0.2},
            {"branches": [_FEED], "dropout": 0.2},
        ],
    },
    "single nodes, pooled": {"blocks": [{"branches": [_FEED], "dropout": 0.2}]},
}
BLIND = "single nodes, pooled"
"""Model without structure."""
REGRESSION = "logistic regression on tags, without structure"
STEPS = 450


def graph_recipe(model: str, files: Mapping[str, str], steps: int) -> Recipe:
    """Recipe of a model for tables of graphs."""
    encodings = "" if model == BLIND else "(walk=8, degree=8)"
    head = {"kind": "classification", "pooling": ["mean", "max", "mean_sqrt_len"], "dropout": 0.3}
    return Recipe.parse(
        {
            "data": {**files, "processor": f"graphs{encodings}", "batching": "length_buckets"},
            "task": "classification",
            "model": {"width": 32, "frontend": "nodes", "head": head, "init_std": 0.1, **MODELS[model]},
            "wide": None if model == BLIND else "features",
            "training": _training(steps, 32, 2e-3, 0.05, "loss"),
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
            "training": _training(steps, 1, 3e-3, 0.5, "accuracy"),
        }
    )


def _training(steps: int, batch: int, rate: float, decay: float, best: str) -> dict[str, Any]:
    return {
        "steps": steps,
        "batch_size": batch,
        "optimizer": {"kind": "adamw", "lr": rate, "weight_decay": decay},
        "schedule": {"kind": "cosine", "warmup": min(20, steps // 4), "final": 0.05},
        "validation": {"every": max(1, steps // 20), "batches": None, "best": best},
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
    return measured(qkv.train(recipe, folder, on_event=quiet))


def measured(run: qkv.Run) -> dict[str, dict[str, float]]:
    """Metrics on the validation and the test part."""
    return {split: dict(qkv.evaluate(run, split=split)) for split in ("validation", "test")}


def probabilities(run: qkv.Run, rows: Rows) -> np.ndarray:
    """Probabilities (rows, labels) of the labels in alphabetical order."""
    answers = qkv.predict(run, [{"graph": row["graph"]} for row in rows])
    return np.array([[each["probabilities"][label] for label in sorted(each["probabilities"])] for each in answers])


def as_good(chances: Sequence[np.ndarray], truth: np.ndarray) -> list[int]:
    """Models whose loss is within one standard error of the least, a paired comparison on the rows of ``truth``."""
    losses = [-np.log(np.maximum(each[np.arange(len(truth)), truth], 1e-12)) for each in chances]
    least = min(losses, key=lambda loss: loss.mean())
    gaps = [loss - least for loss in losses]
    return [i for i, gap in enumerate(gaps) if gap.mean() <= gap.std(ddof=1) / len(truth) ** 0.5]


def of_fold(rows: Rows, fold: int, steps: int, folder: Path) -> Accuracies:
    """Accuracies on a fold, by model; "chosen": mean of the models whose validation loss is as good as the least."""
    parts = folds(rows, FOLDS)
    rest = [row for j, part in enumerate(parts) if j != fold for row in part]
    held = folds(rest, FOLDS)
    split = {"test": parts[fold], "validation": held[0], "source": [row for part in held[1:] for row in part]}
    files = {name: _written(some, folder / f"{name}.jsonl") for name, some in split.items()}
    runs = {name: qkv.train(graph_recipe(name, files, steps), folder / name, on_event=quiet) for name in MODELS}
    found = {name: measured(run) for name, run in runs.items()}
    least = min(found, key=lambda name: found[name]["validation"]["loss"])
    labels = sorted({str(row["label"]) for row in rows})
    truth, unseen = (np.array([labels.index(str(row["label"])) for row in some]) for some in (held[0], parts[fold]))
    kept = as_good([probabilities(run, held[0]) for run in runs.values()], truth)
    mean = np.mean([probabilities(run, parts[fold]) for i, run in enumerate(runs.values()) if i in kept], 0)
    each = {name: figures["test"]["accuracy"] for name, figures in found.items()}
    others, structural = (found[name]["test"] for name in (BLIND, next(iter(MODELS))))
    test = {
        "chosen": 100 * float((mean.argmax(1) == unseen).mean()),
        "model of least validation loss": found[least]["test"]["accuracy"],
        **each,
        "logistic regression on simple features": structural["accuracy_of_bag_of_nodes"],
        REGRESSION: blind_accuracy(split["source"], parts[fold]),
        "most frequent label": others["accuracy_of_most_frequent_label"],
    }
    return {"test": test, "validation": {name: figures["validation"]["accuracy"] for name, figures in found.items()}}


def blind_accuracy(train: Rows, test: Rows) -> float:
    """Accuracy in % of logistic regression on the number of nodes, and number and share of each tag."""
    known = sorted({tag for row in train for tag in row["graph"].get("tags", ())})

    def features(row: dict[str, Any]) -> list[float]:
        tags = list(row["graph"].get("tags", ()))
        counts, size = [tags.count(tag) for tag in known], max(1, len(tags))
        return [len(tags), *counts, *(count / size for count in counts)]

    x, unseen = (np.array([features(row) for row in some], np.float64) for some in (train, test))
    deviation = np.where(x.std(0) > 0, x.std(0), 1)
    model = LogisticRegression(max_iter=1000).fit((x - x.mean(0)) / deviation, [row["label"] for row in train])
    return 100 * float(model.score((unseen - x.mean(0)) / deviation, [row["label"] for row in test]))


def _written(rows: Rows, path: Path) -> str:
    path.write_text("".join(json.dumps({**row["graph"], "label": row["label"]}) + "\n" for row in rows))
    return str(path)


def of_split(fold: int, steps: int, folder: Path) -> Accuracies:
    """Accuracies on a split of Wisconsin, by kind of encodings, and of a regression on features alone."""
    kinds = {"attention, directed encodings": True, "attention, undirected encodings": False}
    found = {name: trained(node_recipe(on, fold, steps), folder / name) for name, on in kinds.items()}
    alone = {split: figures["accuracy_of_features_alone"] for split, figures in next(iter(found.values())).items()}
    return {
        split: {
            **{name: figures[split]["accuracy"] for name, figures in found.items()},
            "logistic regression on features alone": alone[split],
        }
        for split in ("test", "validation")
    }


def known_rows(name: str) -> Rows:
    """Rows of a known table of graphs."""
    return [dict(row.values) for row in named_tables(name)["train"].rows if isinstance(row, Row)]


def small_rows() -> Rows:
    """Rings and stars, for the smoke form."""
    shapes = {"ring": [[0, 1], [1, 2], [2, 3], [3, 0]], "star": [[0, 1], [0, 2], [0, 3]]}
    return [{"graph": {"edges": edges}, "label": label} for label, edges in shapes.items() for _ in range(30)]


def lines(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Rows of the table: mean and standard error of each model on each data set, of the lines of its folds."""
    rows = []
    for name in dict.fromkeys(line["data"] for line in found):
        own = [line["test"] for line in found if line["data"] == name]
        for model in own[0]:
            values = [each[model] for each in own]
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
            rows.append([name, model, f"{statistics.mean(values):.1f}", f"{error:.1f}", str(len(values))])
    return rows


def run_fold(name: str, fold: int, given: argparse.Namespace) -> Accuracies:
    """Accuracies of all models on one fold of a data set."""
    with tempfile.TemporaryDirectory() as scratch:
        if given.smoke:
            return of_fold(small_rows(), fold, 2, Path(scratch))
        if name == "webkb-wisconsin":
            return of_split(fold, given.steps, Path(scratch))
        return of_fold(known_rows(name), fold, given.steps, Path(scratch))


def main() -> None:
    """Run the benchmark and print its table."""
    options: argparse.ArgumentParser = parser(__doc__ or "")
    options.add_argument("data", nargs="*", default=["mutag"], help="mutag, proteins, webkb-wisconsin")
    options.add_argument("--folds", type=int, default=FOLDS, help="number of folds or splits that are run")
    options.add_argument("--steps", type=int, default=STEPS)
    options.add_argument("--results", type=Path, help="file of finished folds; default: none is kept")
    options.add_argument("--page", type=Path, help="page whose table is written")
    given = options.parse_args()
    say_where()
    kept: list[dict[str, Any]] = []
    if given.results and given.results.exists():
        kept = [json.loads(line) for line in given.results.read_text().splitlines()]
    for name in given.data:
        known = {line["fold"] for line in kept if line["data"] == name}
        for fold in [fold for fold in range(1 if given.smoke else given.folds) if fold not in known]:
            kept.append({"data": name, "fold": fold, **run_fold(name, fold, given)})
            if given.results:
                with given.results.open("a") as file:
                    file.write(json.dumps(kept[-1]) + "\n")
    print_table("classification of graphs and nodes", COLUMNS, lines(kept))
    if given.page:
        name = "graphs: benchmarks/graphs.py"
        write_table(given.page, name, COLUMNS, with_rows_of(given.page, name, lines(kept), 1))


if __name__ == "__main__":
    main()
