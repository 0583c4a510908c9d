"""Benchmark of mixers on images: the same classifier with another mixer in its slot, at about equal parameters.

    QKV_DATA=folder python benchmarks/image_mixers.py --minutes 25 --seeds 3 --jobs 2 --page docs/images.md

Fashion-MNIST, patches of 4 × 4 pixels (a stem where said), the same optimiser, augmentation, number of images and time
budget. Every run is a process of its own on one core; ``--jobs`` run at once. A finished run is kept, so that an
interrupted benchmark goes on, and a run that was cut off is resumed. The best weights are chosen on 3,000 held-out
images; figures are those of the test part.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import qkv
from qkv.report.table import print_table
from qkv.spec.recipe import Recipe
from qkv.spec.yaml_io import write_spec
from side_by_side import parser, say_where, write_table


class Contestant(NamedTuple):
    """Model of the race: branches of its blocks, one list for each kind of block, and changes of the model."""

    about: str
    blocks: Sequence[Sequence[str]]
    width: int
    layers: int
    frontend: dict[str, Any] = {}
    published: str = ""


_PATCHES: dict[str, Any] = {"patch": 4, "dropout": 0.1}
_STEM: dict[str, Any] = {"patch": 1, "stem": [32, 64, 128], "dropout": 0.1}
CONTESTANTS = {
    "stem": Contestant(
        "attention behind a convolutional stem", [["attention(4, mask=full)", "feed_forward(160)"]], 128, 4, _STEM
    ),
    "attention": Contestant(
        "attention (ViT)", [["attention(4, mask=full)", "feed_forward(256)"]], 128, 4, _PATCHES, "93.0 (200 epochs)"
    ),
    "mixer": Contestant("MLP-Mixer", [["token_mlp(hidden=96)", "feed_forward(480)"]], 128, 4, _PATCHES, "90.2"),
    "shift": Contestant("S²-MLP", [["spatial_shift(128)", "feed_forward(384)"]], 128, 4, _PATCHES),
    "gmlp": Contestant("gMLP", [["gmlp(hidden=536)"]], 128, 5, _PATCHES),
    "monet": Contestant("MONet", [["monet(304)"], ["monet(304, shift=false)"]], 128, 4, _PATCHES),
    "pooling": Contestant("pooling (PoolFormer)", [["pooling(3)", "feed_forward(512)"]], 128, 4, _PATCHES),
    "convolution": Contestant(
        "small convolutional network", [], 288, 0, {"patch": 1, "stem": [64, 144, 288], "positions": "none"}, "92.5"
    ),
}


def recipe_of(name: str, seed: int, given: argparse.Namespace) -> Recipe:
    """Recipe of a contestant."""
    found = CONTESTANTS[name]
    model: dict[str, Any] = {
        "width": found.width,
        "frontend": {"kind": "patches", **found.frontend},
        "blocks": [{"branches": list(branches), "dropout": 0.05} for branches in found.blocks],
        "head": "classification(pooling=mean)",
    }
    model |= {"num_layers": found.layers} if found.layers else {}
    steps = 4 if given.smoke else 40_000
    data = {"source": given.source, "processor": {"kind": "images", "augment": ["crop(2)", "flip"]}}
    training = {
        "steps": steps,
        "minutes": None if given.smoke else given.minutes,
        "batch_size": 64,
        "seed": seed,
        "precision": "bf16",
        "optimizer": {"kind": "muon", "lr": 0.02, "weight_decay": 0.02, "others": {"lr": 3e-3, "weight_decay": 0.02}},
        "schedule": {"kind": "cosine", "warmup": min(500, steps // 2), "final": 0.01},
        "validation": {"every": min(1000, steps), "batches": None, "best": "accuracy"},
    }
    task = "classification(label_smoothing=0.1)"
    plain = {"name": name, "data": {**data, "validation_fraction": 0.05}, "task": task}
    return Recipe.parse({**plain, "model": model, "training": training})


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--models", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    options.add_argument("--source", default="fashion-mnist", help="named data set, table or folder of images")
    options.add_argument("--seeds", type=int, default=3, help="number of seeds, from 1")
    options.add_argument("--minutes", type=float, default=25.0, help="time budget of a run, evaluation included")
    options.add_argument("--jobs", type=int, default=1, help="runs at once, each on one core")
    options.add_argument("--out", type=Path, default=Path("images"), help="folder of the runs")
    options.add_argument("--page", type=Path, help="Markdown page with a place for the table")
    given = options.parse_args()
    if given.smoke:
        given.models, given.seeds, given.source = ["mixer"], 1, str(_smoke_images(given.out))
    return given


def _smoke_images(folder: Path) -> Path:
    """Forty small images of two classes."""
    import numpy as np
    from PIL import Image

    rng, place = np.random.default_rng(0), folder / "smoke"
    for number in range(40):
        (place / f"{number % 2}").mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 100, (12, 12), dtype=np.uint8) + np.uint8(100 * (number % 2))
        Image.fromarray(pixels).save(place / f"{number % 2}" / f"{number}.png")
    return place


def train(name: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train a contestant in a process of its own, if it was not done; return its result."""
    given.out.mkdir(parents=True, exist_ok=True)
    folder, recipe = given.out / f"{name}-{seed}", given.out / f"{name}-{seed}.yaml"
    result = folder / "benchmark.json"
    if not result.exists():
        write_spec(recipe, recipe_of(name, seed, given))
        began = time.perf_counter()
        command = [sys.executable, "-m", "qkv", "train", str(recipe), "--out", str(folder)]
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name}, seed {seed}: {done.stderr[-2000:]}")
        run = qkv.load(folder)
        splits = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))["splits"]
        found = {
            "model": name,
            "seconds": time.perf_counter() - began,
            "steps": max(row["step"] for row in run.metrics),
            "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
            "figures": (splits.get("test") or splits["validation"])["figures"],
        }
        result.write_text(json.dumps(found), encoding="utf-8")
    return json.loads(result.read_text(encoding="utf-8"))


TABLE = "image mixers: benchmarks/image_mixers.py"
COLUMNS = ["mixer", "parameters", "epochs", "minutes", "seeds", "accuracy %", "published"]


def summary(name: str, results: list[dict[str, Any]], given: argparse.Namespace) -> list[str]:
    """Row of the table of results."""
    accuracies = [found["figures"]["accuracy"] for found in results]
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else math.nan
    epochs = statistics.mean(found["steps"] for found in results) * 64 / 57_000
    return [
        CONTESTANTS[name].about,
        f"{results[0]['parameters']:,}",
        f"{epochs:.1f}",
        f"{max(found['seconds'] for found in results) / 60:.1f}",
        str(len(results)),
        f"{statistics.mean(accuracies):.2f}" + (f" ± {spread:.2f}" if len(accuracies) > 1 else ""),
        CONTESTANTS[name].published,
    ]


def main() -> None:
    """Run the benchmark and print its table."""
    given = arguments()
    say_where()
    work = [(name, seed) for seed in range(1, given.seeds + 1) for name in given.models]
    with ThreadPoolExecutor(given.jobs) as pool:
        results = list(pool.map(lambda each: train(*each, given), work))
    rows = [summary(name, [found for found in results if found["model"] == name], given) for name in given.models]
    print_table("mixers on images", COLUMNS, rows)
    if given.page:
        write_table(given.page, TABLE, COLUMNS, rows)


if __name__ == "__main__":
    main()
