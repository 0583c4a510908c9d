"""Benchmark of mixers on images: the same classifier with another mixer in its slot, at about equal parameters.

    QKV_DATA=folder python benchmarks/image_mixers.py --minutes 25 --seeds 3 --jobs 2 --page docs/images.md

Fashion-MNIST, patches of 4 × 4 pixels (a stem where said), the same optimiser, augmentation, number of images and time
budget: a comparison of ``qkv compare`` at equal time, each run in a process of its own on one core, ``--jobs`` at once.
An interrupted benchmark goes on. The best weights are chosen on held-out images; figures are those of the test part.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qkv.comparison.compare import compare
from qkv.comparison.executors import Processes
from qkv.comparison.outcome import read_outcome
from qkv.comparison.ranking import EntryResult, Ranking
from qkv.report.table import print_table
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.comparison import Comparison
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


def changes(name: str) -> tuple[str, ...]:
    """Overrides of the base recipe that make the model of a contestant."""
    found = CONTESTANTS[name]
    blocks = [{"branches": list(branches), "dropout": 0.05} for branches in found.blocks]
    layers = (f"model.num_layers={found.layers}",) if found.layers else ()
    return (
        f"model.width={found.width}",
        f"model.blocks={json.dumps(blocks)}",
        f"model.frontend={json.dumps({'kind': 'patches', **found.frontend})}",
        *layers,
    )


def base_recipe(given: argparse.Namespace) -> Recipe:
    """Recipe that all contestants change."""
    model = {"width": 128, "frontend": {"kind": "patches", **_PATCHES}, "head": "classification(pooling=mean)"}
    model |= {"blocks": [{"branches": ["attention(4, mask=full)", "feed_forward(256)"]}]}
    steps = 4 if given.smoke else 40_000
    data = {"source": given.source, "processor": {"kind": "images", "augment": ["crop(2)", "flip"]}}
    training = {
        "steps": steps,
        "minutes": None if given.smoke else given.minutes,
        "batch_size": 64,
        "precision": "bf16",
        "optimizer": {"kind": "muon", "lr": 0.02, "weight_decay": 0.02, "others": {"lr": 3e-3, "weight_decay": 0.02}},
        "schedule": {"kind": "cosine", "warmup": min(500, steps // 2), "final": 0.01},
        "validation": {"every": min(1000, steps), "batches": None, "best": "accuracy"},
    }
    task = "classification(label_smoothing=0.1)"
    plain = {"name": "image_mixers", "data": {**data, "validation_fraction": 0.05}, "task": task}
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


TABLE = "image mixers: benchmarks/image_mixers.py"
COLUMNS = ["mixer", "parameters", "epochs", "minutes", "seeds", "accuracy %", "published"]


def summary(found: EntryResult, ranking: Ranking) -> list[str]:
    """Row of the table of results."""
    contestant, accuracies = CONTESTANTS[found.name], list(found.values.values())
    if found.rate is None or not accuracies:
        return [contestant.about, f"{found.parameters:,}", "", "", "", found.failed, contestant.published]
    outcomes = [read_outcome(ranking.plan.run(found.name, found.rate, seed).folder) for seed in found.values]
    epochs = statistics.mean(outcome.counts["steps"] for outcome in outcomes if outcome) * 64 / 57_000
    spread = f" ± {statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    return [
        contestant.about,
        f"{found.parameters:,}",
        f"{epochs:.1f}",
        f"{(found.seconds or 0) / 60:.1f}",
        str(len(accuracies)),
        f"{statistics.mean(accuracies):.2f}{spread}",
        contestant.published,
    ]


def main() -> None:
    """Run the benchmark and print its table."""
    given = arguments()
    say_where()
    os.environ["OMP_NUM_THREADS"] = str(given.jobs)  # one thread for each run
    comparison = Comparison.parse(
        {
            "recipe": "image_mixers",
            "entries": {name: changes(name) for name in given.models},
            "equal": "parameters" if given.smoke else "time",
            "seeds": list(range(1, given.seeds + 1)),
            "rates": [1.0],
            "metric": "accuracy",
        }
    )
    ranking = compare(comparison, given.out, Processes(given.jobs), base_recipe(given))
    rows = [summary(found, ranking) for found in ranking.rows]
    print_table("mixers on images", COLUMNS, rows)
    print("\n".join(ranking.conclusions()))
    if given.page:
        write_table(given.page, TABLE, COLUMNS, rows)


if __name__ == "__main__":
    main()
