"""Benchmark of one frozen encoder behind several front ends: texts, images, series and sounds (Meta-Transformer).

    QKV_DATA=folder python benchmarks/shared_encoder.py [--seeds 1 2 3] [--steps 300] [--write PAGE]

For each kind of signal a small encoder is trained from random weights. Beside it stand runs whose blocks are frozen and
begin as those of the run on texts (``start: blocks(RUN)``), or at random; they learn a front end and a head alone. All
have the same blocks, steps and batches. Texts are sentences of SST-2, images of Fashion-MNIST, series days of ETTh1,
whose quarter of the year is asked, sounds the digits of the Free Spoken Digit Dataset; accuracy is that of a test part.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import random
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import qkv
from qkv.report.table import print_table
from qkv.spec.recipe import Recipe
from side_by_side import parser, say_where, write_table
from spoken_digits import tones

Rows = list[dict[str, Any]]
COLUMNS = ("signal", "rows", "trained for it", "frozen, of the texts", "frozen, random", "most frequent label")
FIELDS: dict[str, dict[str, Any]] = {
    "text": {"data": {"tokenizer": "wordpiece(vocab_size=2000)"}, "frontend": "text(dropout=0.1)"},
    "image": {"data": {"processor": "images"}, "frontend": "patches(patch=7)"},
    "series": {
        "data": {"processor": "series"},
        "frontend": "series_patches(patch=4, stride=2, channels=mixed, normalise=none)",
    },
    "sound": {
        "data": {"processor": "log_mel(rate=8000, longest=1.5)"},
        "frontend": "mel_convolutions(strides=[2, 2])",
    },
}
BLOCKS = [{"branches": ["attention(4, mask=full)", "feed_forward(128)"], "norm": "layer_norm", "dropout": 0.1}]
_DAY = 24


def texts(folder: Path, rng: random.Random) -> tuple[Rows, Rows]:
    """Sentences with their opinion."""
    parts = list[Rows]()
    for name in ("train", "test"):
        content = gzip.decompress(next((folder / "sst2").glob(f"{name}*")).read_bytes()).decode()
        rows = [*csv.DictReader(content.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)]
        parts.append([{"text": row["sentence"], "label": row["label"]} for row in rows])
    return rng.sample(parts[0], 2000), parts[1]


def images(folder: Path, rng: random.Random) -> tuple[Rows, Rows]:
    """Pictures of clothes with their kind."""
    parts = list[Rows]()
    for name in ("train", "t10k"):
        pixels, labels = (
            np.frombuffer(
                gzip.decompress(next((folder / "fashion-mnist").glob(f"{name}-{kind}*")).read_bytes()), np.uint8
            )
            for kind in ("images", "labels")
        )
        some = zip(pixels[16:].reshape(-1, 28, 28), labels[8:].tolist(), strict=True)
        parts.append([{"image": image, "label": str(label)} for image, label in some])
    return rng.sample(parts[0], 2000), rng.sample(parts[1], 1000)


def series(folder: Path, rng: random.Random) -> tuple[Rows, Rows]:
    """Days of seven columns with the quarter of the year."""
    content = gzip.decompress((folder / "ett" / "ETTh1.csv.gz").read_bytes()).decode()
    lines = [*csv.reader(content.splitlines())][1:]
    days = [lines[begin : begin + _DAY] for begin in range(0, len(lines) - _DAY + 1, _DAY)]
    rows = [
        {"series": [[float(cell) for cell in line[1:]] for line in day], "label": f"q{(int(day[0][0][5:7]) + 2) // 3}"}
        for day in days
    ]
    rng.shuffle(rows)
    return rows[len(rows) // 4 :], rows[: len(rows) // 4]


def sounds(folder: Path, rng: random.Random) -> tuple[Rows, Rows]:
    """Recordings of digits; takes 0 to 4 are for the test."""
    parts: tuple[Rows, Rows] = ([], [])
    with tarfile.open(folder / "fsdd" / "recordings.tar.gz") as archive:
        for member in archive:
            if member.name.endswith(".wav") and (file := archive.extractfile(member)) is not None:
                digit, _, take = Path(member.name).stem.split("_")
                parts[int(take) < 5].append({"sound": file.read(), "label": digit})
    return parts


def drawn(folder: Path) -> dict[str, tuple[Rows, Rows]]:
    """Rows of all kinds for a short try."""
    rng = np.random.default_rng(0)
    labels = [f"label {i % 2}" for i in range(40)]
    values: dict[str, list[Any]] = {
        "text": [f"{label} is number {i} of them" for i, label in enumerate(labels)],
        "image": [rng.integers(0, 200, (14, 14)).astype(np.uint8) + np.uint8(50 * (i % 2)) for i in range(40)],
        "series": [[[math.sin(k * (1 + i % 2)), 0.1 * i] for k in range(12)] for i in range(40)],
        "sound": [str(path) for path in (*tones(folder), *tones(folder))][:40],
    }
    every = {name: [{name: v, "label": w} for v, w in zip(some, labels, strict=False)] for name, some in values.items()}
    return {name: (rows[10:], rows[:10]) for name, rows in every.items()}


READ: dict[str, Callable[[Path, random.Random], tuple[Rows, Rows]]] = {
    "text": texts,
    "image": images,
    "series": series,
    "sound": sounds,
}


def recipe_of(kind: str, seed: int, steps: int, blocks_of: Path | None, frozen: bool) -> Recipe:
    """Recipe of a run; ``blocks_of``: run whose blocks it begins with."""
    fields = FIELDS[kind]
    training = {
        "steps": steps,
        "batch_size": 32,
        "seed": seed,
        "optimizer": {"kind": "adamw", "lr": 1e-3},
        "schedule": {"kind": "cosine", "warmup": min(30, steps // 2)},
        "validation": {"every": max(1, steps // 6)},
        "frozen": ["blocks", "norm"] if frozen else [],
    }
    model = {
        "width": 64,
        "num_layers": 2,
        "context_length": 64,
        "blocks": BLOCKS,
        "frontend": fields["frontend"],
        "head": "classification(pooling=mean)",
    }
    start = {} if blocks_of is None else {"start": {"kind": "blocks", "source": str(blocks_of)}}
    data = {"source": "memory", **fields["data"]}
    return Recipe.parse({"data": data, "task": "classification", "model": model, "training": training, **start})


def accuracy(kind: str, parts: tuple[Rows, Rows], folder: Path, recipe: Recipe) -> tuple[float, float]:
    """Train; return (accuracy on the test part, that of the most frequent label)."""
    run = qkv.train(recipe, folder, data={"train": parts[0], "test": parts[1]}, on_event=lambda event: None)
    assert run.evaluation is not None
    figures = run.evaluation["splits"]["test"]["figures"]
    print(f"{kind}, {folder.name}: {figures['accuracy']:.2f}", flush=True)
    return figures["accuracy"], figures["accuracy_of_most_frequent_label"]


def main() -> None:
    parts = parser(__doc__)
    parts.add_argument("--data", type=Path, default=Path(os.environ.get("QKV_DATA", ".")))
    parts.add_argument("--seeds", type=int, nargs="+", default=[1])
    parts.add_argument("--steps", type=int, default=300)
    parts.add_argument("--write", type=Path, help="page whose table is written")
    options = parts.parse_args()
    say_where()
    steps = 2 if options.smoke else options.steps
    figures = dict[tuple[str, str], list[float]]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = drawn(folder) if options.smoke else {}
        rows = {kind: small.get(kind) or read(options.data, random.Random(0)) for kind, read in READ.items()}
        for seed in options.seeds:
            encoder = folder / f"text-own-{seed}"
            for kind, some in rows.items():
                ways = {"own": (None, False), "random": (None, True), "texts": (encoder, True)}
                for way, (blocks_of, frozen) in ways.items():
                    if (kind, way) == ("text", "texts"):
                        continue
                    place = folder / f"{kind}-{way}-{seed}"
                    right, usual = accuracy(kind, some, place, recipe_of(kind, seed, steps, blocks_of, frozen))
                    figures.setdefault((kind, way), []).append(right)
                    figures.setdefault((kind, "usual"), []).append(usual)
    table = [
        [
            kind,
            f"{len(rows[kind][0]):,}",
            *(_shown(figures.get((kind, way))) for way in ("own", "texts", "random", "usual")),
        ]
        for kind in rows
    ]
    print_table("one encoder behind several front ends: accuracy on the test part, in %", COLUMNS, table)
    if options.write:
        write_table(options.write, "shared_encoder: shared_encoder.py", COLUMNS, table)


def _shown(values: list[float] | None) -> str:
    return "–" if values is None else f"{mean(values):.2f}"


if __name__ == "__main__":
    main()
