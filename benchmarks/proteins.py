"""Benchmark of the default on proteins: location in the cell, against the most frequent label and composition.

    QKV_DATA=folder python benchmarks/proteins.py --seeds 3 --minutes 5 --jobs 1 --write docs/proteins.md

``qkv train classify --data train.csv`` on DeepLoc-like sequences. Every run is a process of its own on one core; a
finished run is kept. The model is chosen on a tenth of the training rows; the parts *val* and *hard* (less than 30 % of
identity to other proteins) are read once, at the end. The composition baseline is a logistic regression over the
frequencies of the amino acids and the logarithm of the length.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from qkv.report.table import print_table
from side_by_side import parser, say_where

_ACIDS = "ACDEFGHIKLMNPQRSTVWYX"
_PARTS = {"train": "train", "val": "val", "hard": "test_hard"}
COLUMNS = ["part", "proteins", "most frequent location", "composition", "qkv"]
Pairs = list[tuple[str, str]]


def read(name: str) -> Pairs:
    """(sequence, location) of a part."""
    path = Path(os.environ.get("QKV_DATA", ".")) / f"protein-localization/{_PARTS[name]}.tsv.gz"
    head, *rows = [line.split("\t") for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    sequence, location = head.index("sequence"), head.index("location")
    return [(row[sequence], row[location]) for row in rows]


def made() -> dict[str, Pairs]:
    """Small parts that need no data: the location decides the composition."""
    rng = np.random.default_rng(0)

    def pair(label: int) -> tuple[str, str]:
        acids = list(_ACIDS[:10] if label else _ACIDS[5:15])
        return "".join(rng.choice(acids, 30)), f"place {label}"

    return {name: [pair(number % 2) for number in range(count)] for name, count in (("train", 60), ("val", 20))}


def composition(sequence: str) -> list[float]:
    """Frequencies of the amino acids, and the logarithm of the length."""
    counts = Counter(sequence.upper())
    return [counts[acid] / max(1, len(sequence)) for acid in _ACIDS] + [math.log(max(1, len(sequence)))]


def baselines(parts: dict[str, Pairs]) -> dict[str, tuple[float, float]]:
    """Accuracy in percent of the most frequent location of the training part, and of the composition, by part."""
    usual = Counter(location for _, location in parts["train"]).most_common(1)[0][0]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    model.fit([composition(sequence) for sequence, _ in parts["train"]], [location for _, location in parts["train"]])
    found = {}
    for name, pairs in parts.items():
        truth = [location for _, location in pairs]
        predicted = model.predict([composition(sequence) for sequence, _ in pairs])
        most = statistics.mean(location == usual for location in truth)
        found[name] = 100 * most, 100 * float(np.mean(predicted == np.array(truth)))
    return found


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--seeds", type=int, default=3, help="number of seeds, from 1")
    options.add_argument("--minutes", type=float, default=5.0, help="time budget of a run")
    options.add_argument("--jobs", type=int, default=1, help="runs at once, each on one core")
    options.add_argument("--out", type=Path, default=Path("proteins"), help="folder of tables and runs")
    options.add_argument("--write", type=Path, help="Markdown file for the results")
    return options.parse_args()


def write_tables(parts: dict[str, Pairs], folder: Path) -> dict[str, Path]:
    """Write each part as a table; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.csv" for name in parts}
    for name, pairs in parts.items():
        with files[name].open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("sequence", "location"), *pairs])
    return files


def qkv(*command: object) -> str:
    """Output of a command of qkv, run in a process of its own on one core."""
    words = [sys.executable, "-m", "qkv", *map(str, command)]
    done = subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"qkv {command[0]}: {done.stderr[-2000:]}")
    return done.stdout


def train(seed: int, files: dict[str, Path], given: argparse.Namespace) -> dict[str, Any]:
    """Train the default, if it was not done; return its accuracies by part and the seconds of training."""
    folder = given.out / f"seed-{seed}"
    result = folder / "benchmark.json"
    if not result.exists():
        short = ["training.steps=4", "candidates={}"] * given.smoke
        began = time.perf_counter()
        chosen = ["--minutes", given.minutes, f"training.seed={seed}", *short]
        qkv("train", "classify", "--data", files["train"], "--out", folder, *chosen)
        found: dict[str, Any] = {"seconds": time.perf_counter() - began}
        for name in files:
            if name != "train":
                found[name] = json.loads(qkv("evaluate", folder, "--data", files[name], "--json"))
        result.write_text(json.dumps(found), encoding="utf-8")
    return json.loads(result.read_text(encoding="utf-8"))


def accuracy(results: list[dict[str, Any]], name: str) -> str:
    """Mean and standard deviation of the accuracies on a part."""
    values = [found[name]["accuracy"] for found in results]
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def written(rows: list[list[str]], results: list[dict[str, Any]], given: argparse.Namespace) -> str:
    """Markdown page of the results."""
    lines = ["| " + " | ".join(row) + " |" for row in (COLUMNS, ["---"] * len(COLUMNS), *rows)]
    most = max(found["seconds"] for found in results) / 60
    about = (
        "Written by `benchmarks/proteins.py`: accuracy in percent of `qkv train classify --data train.csv`, "
        f"{len(results)} seeds, at most {most:.1f} minutes a run on one core, mean and standard deviation."
    )
    return "\n".join(["# Location of proteins", "", about, "", *lines, ""])


def main() -> None:
    """Run the benchmark and print its table."""
    given = arguments()
    say_where()
    parts = made() if given.smoke else {name: read(name) for name in _PARTS}
    known = {location for _, location in parts["train"]}
    parts = {name: [pair for pair in pairs if pair[1] in known] for name, pairs in parts.items()}
    files, simple = write_tables(parts, given.out), baselines(parts)
    with ThreadPoolExecutor(given.jobs) as pool:
        results = list(
            pool.map(lambda seed: train(seed, files, given), range(1, 1 + (1 if given.smoke else given.seeds)))
        )
    held = [name for name in parts if name != "train"]
    rows = [
        [name, f"{len(parts[name]):,}", *(f"{value:.1f}" for value in simple[name]), accuracy(results, name)]
        for name in held
    ]
    print_table("location of proteins", COLUMNS, rows)
    if given.write:
        given.write.write_text(written(rows, results, given), encoding="utf-8")


if __name__ == "__main__":
    main()
