"""Benchmark of the default against a strong simple baseline: ``qkv train`` in one line, over several seeds.

    QKV_DATA=folder python benchmarks/defaults.py --sets mutag proteins --seeds 3 --minutes 5 --out runs/defaults

A seed draws the test part: a fifth of the rows, or all but 1,500. The baseline is fitted to all other rows by
scikit-learn, with a strength chosen by cross-validation: for graphs a Weisfeiler–Lehman bag of neighbourhoods of 4
rounds, here counted by their descriptions in plain text; for pictures pixels and histograms of gradients; for texts
TF-IDF of n-grams. The default holds a tenth of these rows out for its choice. A finished run is kept.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler

from own_tables import reviews
from qkv.data.features.gradients import hog
from qkv.data.records.named import named_tables
from qkv.data.records.table import Row
from qkv.report.table import print_table
from qkv.system.processor import processor_name
from qkv.tasks.baselines.baselines import ngrams
from side_by_side import parser, say_where, write_table

Rows = list[tuple[Any, str]]
"""Input and label of each row."""
Matrices = tuple[Any, Any]
"""Features of the training and of the test rows."""
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Inverse penalties that are tried, for rows of mean square 1."""
ROUNDS, SMALL = 4, 1500


def mutag() -> Rows:
    """188 molecules: does it cause mutations?"""
    return _known("mutag")


def proteins() -> Rows:
    """1,113 proteins: is it an enzyme?"""
    return _known("proteins")


def _known(name: str) -> Rows:
    rows = [row.values for row in named_tables(name)["train"].rows if isinstance(row, Row)]
    return [(dict(row["graph"]), str(row["label"])) for row in rows]


def groups() -> Rows:
    """Made, 1,500 molecule-like graphs: sum of values of their atoms with neighbours, above the median, with noise."""
    draw, found = random.Random(0), []
    for _ in range(SMALL):
        count = draw.randint(15, 35)
        edges = [(j, draw.randrange(max(0, j - 3), j)) for j in range(1, count)]
        edges += [(a, a + 5) for a in (draw.randrange(count - 6) for _ in range(draw.randint(0, 3)))]
        tags = draw.choices("CCCCCCNOOSF", k=count)
        around = [sorted(tags[b] for b in each) for each in _neighbours(count, edges)]
        values = [random.Random(f"{tag}{near}").gauss(0, 1) for tag, near in zip(tags, around, strict=True)]
        found.append(({"num_nodes": count, "edges": edges, "tags": tags}, sum(values) + draw.gauss(0, 1)))
    middle = statistics.median(value for _, value in found)
    return [(graph, "high" if value > middle else "low") for graph, value in found]


def rings() -> Rows:
    """Made, 600 graphs without tags: do they have more rings of three nodes than of four?"""
    draw, found = random.Random(1), []
    for _ in range(600):
        count, edges = 1, list[tuple[int, int]]()
        sizes = [draw.choice((3, 4)) for _ in range(draw.choice((3, 5, 7)))]
        for size in sizes:
            ring = [draw.randrange(count), *range(count, count + size - 1)]
            edges += [(ring[i], ring[i - 1]) for i in range(size)]
            count += size - 1
        for _ in range(draw.randint(3, 10)):
            edges.append((draw.randrange(count), count))
            count += 1
        found.append(({"num_nodes": count, "edges": edges}, "three" if sizes.count(3) > sizes.count(4) else "four"))
    return found


def _neighbours(count: int, edges: Sequence[Sequence[int]]) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in range(count)]
    for a, b in edges:
        if a != b:
            found[a].add(b)
            found[b].add(a)
    return found


def pictures() -> Rows:
    """Fashion-MNIST, pixels of 4,500 pictures."""
    folder = Path(os.environ.get("QKV_DATA", ".")) / "fashion-mnist"
    images, labels = (
        np.frombuffer(gzip.decompress((folder / f"train-{name}-ubyte.gz").read_bytes()), np.uint8, offset=skipped)
        for name, skipped in (("images-idx3", 16), ("labels-idx1", 8))
    )
    return list(zip(images.reshape(-1, 28, 28)[:4500], map(str, labels[:4500].tolist()), strict=True))


def opinions() -> Rows:
    """SST-2, sentences of film reviews: 1,500 for training, and the published test part."""
    columns, parts = reviews(Path(os.environ.get("QKV_DATA", ".")))
    text, label = columns.index("sentence"), columns.index("label")
    return [(row[text], str(row[label])) for part in ("data", "test") for row in parts[part][: 2 * SMALL]]


def subtree_features(train: Sequence[Any], test: Sequence[Any]) -> Matrices:
    """ln(1 + count) of descriptions of the neighbourhoods of nodes, of 0 to ``ROUNDS`` rounds."""
    numbers = dict[Any, int]()
    bags = [[_bag(graph, numbers) for graph in some] for some in (train, test)]
    read = DictVectorizer().fit(bags[0])
    sides = [read.transform(side) for side in bags]
    return _normalised([csr_matrix((np.log1p(side.data), side.indices, side.indptr), side.shape) for side in sides])


def _bag(graph: dict[str, Any], numbers: dict[Any, int]) -> dict[str, int]:
    """Number of nodes of each description: a node's, and the sorted ones of its neighbours, of the round before."""
    tags = graph.get("tags")
    count = graph.get("num_nodes") or len(tags or ())
    near, found = _neighbours(count, np.asarray(graph["edges"]).tolist()), Counter[str]()
    own: list[Any] = list(tags) if tags is not None else [len(each) for each in near]
    for number in range(ROUNDS + 1):
        ids = [numbers.setdefault((number, each), len(numbers)) for each in own]
        found.update(f"{number} {each}" for each in ids)
        own = [(each, *sorted(ids[b] for b in around)) for each, around in zip(ids, near, strict=True)]
    return dict(found)


def _normalised(sides: Sequence[Any]) -> Matrices:
    """Both matrices over one scale, so that training rows have a mean square of 1."""
    scale = float(sides[0].multiply(sides[0]).sum(1).mean()) ** 0.5
    return sides[0] / scale, sides[1] / scale


def picture_features(train: Sequence[Any], test: Sequence[Any]) -> Matrices:
    """Pixels averaged in twos, and histograms of oriented gradients, standardised."""
    sides = [
        np.array([[*image.reshape(14, 2, 14, 2).mean((1, 3)).ravel(), *hog(image[None])] for image in some])
        for some in (train, test)
    ]
    scaler = StandardScaler().fit(sides[0])
    return tuple(scaler.transform(side) / sides[0].shape[1] ** 0.5 for side in sides)  # type: ignore[return-value]


def text_features(train: Sequence[Any], test: Sequence[Any]) -> Matrices:
    """TF-IDF of n-grams of words and characters."""
    read = ngrams()
    return read.fit_transform(train), read.transform(test)


class Data(NamedTuple):
    """Set: its rows, most training rows, and features of the baseline."""

    rows: Callable[[], Rows]
    most: int | None
    features: Callable[[Sequence[Any], Sequence[Any]], Matrices]


SETS = {
    "mutag": Data(mutag, None, subtree_features),
    "proteins": Data(proteins, None, subtree_features),
    "groups": Data(groups, None, subtree_features),
    "rings": Data(rings, None, subtree_features),
    "pictures": Data(pictures, SMALL, picture_features),
    "opinions": Data(opinions, SMALL, text_features),
}


def split(name: str, seed: int, smoke: bool) -> tuple[Rows, Rows]:
    """Training and test rows of a seed."""
    rows = list(SETS[name].rows())
    random.Random(seed).shuffle(rows)
    cut = 60 if smoke else SETS[name].most or round(0.8 * len(rows))
    return rows[:cut], rows[cut : cut + 60] if smoke else rows[cut:]


def write_rows(rows: Rows, path: Path) -> Path:
    """Write rows as a table that ``qkv train`` reads: lines of JSON for graphs, else CSV; pictures as files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(rows[0][0], dict):
        lines = [json.dumps({**_plain(graph), "label": label}) for graph, label in rows]
        path = path.with_suffix(".jsonl")
        path.write_text("\n".join(lines), encoding="utf-8")
        return path
    values = [_picture(value, path, i) if isinstance(value, np.ndarray) else value for i, (value, _) in enumerate(rows)]
    column = "image" if isinstance(rows[0][0], np.ndarray) else "text"
    path = path.with_suffix(".csv")
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([(column, "label"), *zip(values, (label for _, label in rows), strict=True)])
    return path


def _plain(graph: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in graph.items() if value is not None}


def _picture(pixels: np.ndarray, path: Path, number: int) -> str:
    from PIL import Image

    place = path.parent / f"{path.name}-{number}.png"
    Image.fromarray(pixels).save(place)
    return str(place.resolve())


def baseline(name: str, train: Rows, test: Rows) -> float:
    """Accuracy in % of logistic regression on the test rows, fitted to all others."""
    x, unseen = SETS[name].features(*([value for value, _ in rows] for rows in (train, test)))
    search: Any = GridSearchCV(LogisticRegression(max_iter=300), {"C": STRENGTHS}, cv=5)
    search.fit(x, [label for _, label in train])
    return 100 * float(search.score(unseen, [label for _, label in test]))


def run(name: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Result of one seed, trained unless it was: accuracies of the default and of the baseline on the test part."""
    folder = given.out / f"{name}-{seed}"
    result = folder / "benchmark.json"
    if not result.exists():
        train, test = split(name, seed, given.smoke)
        files = [
            write_rows(rows, given.out / f"rows-{name}-{seed}" / part)
            for rows, part in ((train, "train"), (test, "test"))
        ]
        command = [sys.executable, "-m", "qkv", "train", "classify", "--data", files[0], "--test", files[1]]
        command += ["--minutes", given.minutes, "--out", folder, f"training.seed={seed}"]
        command += ["training.steps=4", "candidates={}"] * given.smoke
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name}, seed {seed}: {done.stderr[-2000:]}")
        splits = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))["splits"]
        kept = next(each for each in splits["validation"]["sections"] if each["kind"] == "contestants")["rows"][0][0]
        own, strong = splits["test"]["figures"]["accuracy"], baseline(name, train, test)
        found = {"set": name, "seed": seed, "default": own, "baseline": strong, "kept": kept}
        result.write_text(json.dumps(found), encoding="utf-8")
    return json.loads(result.read_text(encoding="utf-8"))


COLUMNS = ("set", "default", "strong baseline", "gain", "standard error", "kept (runs)", "seeds")


def summary(name: str, found: Sequence[dict[str, Any]]) -> list[str]:
    """Row of the table: means over the seeds, and the standard error of the gain, paired."""
    gains = [each["default"] - each["baseline"] for each in found]
    error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
    means = [statistics.mean(each[side] for each in found) for side in ("default", "baseline")]
    kept = ", ".join(f"{who} ({count})" for who, count in Counter(each["kept"] for each in found).most_common())
    return [
        name,
        *(f"{mean:.1f}" for mean in means),
        f"{statistics.mean(gains):+.1f}",
        f"{error:.1f}",
        kept,
        str(len(gains)),
    ]


def main() -> None:
    """Run the benchmark and print its table."""
    options = parser(__doc__ or "")
    options.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    options.add_argument("--seeds", type=int, default=3, help="number of seeds, from 1")
    options.add_argument(
        "--minutes", type=float, default=5.0, help="time budget of a run, heats and evaluation included"
    )
    options.add_argument("--out", type=Path, default=Path("runs/defaults"), help="folder of rows and runs")
    options.add_argument("--write", type=Path, help="page whose table is written")
    given = options.parse_args()
    if given.smoke:
        given.sets, given.seeds, given.minutes = ["rings"], 1, 0.1
    say_where("scikit-learn")
    rows = []
    for name in given.sets:
        rows.append(summary(name, [run(name, seed, given) for seed in range(1, given.seeds + 1)]))
        print("  ".join(rows[-1]), flush=True)
    print_table("default and strong baseline, accuracy in %", COLUMNS, rows)
    if given.write:
        note = f"{given.minutes:g} minutes a run on {processor_name()} with {os.cpu_count()} processors."
        write_table(given.write, "defaults: defaults.py", COLUMNS, rows, note)


if __name__ == "__main__":
    main()
