"""Benchmark of a table with a picture, a text, numbers and a category: what each input alone adds to all together.

    QKV_DATA=folder python benchmarks/mixed_table.py [--seeds 1 2 3] [--minutes 1] [--write PAGE]

The table is built from OpenMoji's drawings: the picture, its name with one tag, the share of the picture that is drawn,
the number of its colours, and its main colour; the target is the group of the drawing. ``qkv train classify`` in one
line guesses the inputs; beside it stand runs of the same command with one kind of input each. Figures are those of the
test part, a fifth of the rows, which each seed draws anew. Every run is a process of its own, ``--jobs`` at once.
"""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from qkv.report.table import print_table
from side_by_side import parser, say_where, write_table

HEADER = ("picture", "words", "covered", "colours", "main colour", "group")
INPUTS = {
    "picture": ("--image", "picture"),
    "text": ("--text", "words"),
    "numbers and category": ("--cells", "covered,colours,main colour"),
    "all": (),
}
"""Inputs of a run -> options of the command; none: the inputs that the command guesses."""
COLUMNS = ("inputs", "accuracy, mean", "of each seed", "best baseline")
_LEVELS, _OFTEN = 64, 0.01
"""Width of a step of a colour's channel, and the share of the drawing from which on a colour counts."""


def row_of(path: Path, words: str, group: str) -> list[Any]:
    """Row of the table for a drawing: file, words, and what its pixels say."""
    pixels = np.asarray(Image.open(path).convert("RGBA"))
    solid = pixels[pixels[..., 3] > 127][:, :3] // _LEVELS
    counts = Counter(map(tuple, solid.tolist()))
    colours = [colour for colour, count in counts.most_common() if count >= _OFTEN * len(solid)]
    main = next((colour for colour in colours if sum(colour)), (0, 0, 0))
    covered = round(100 * len(solid) / (pixels.shape[0] * pixels.shape[1]), 1)
    return [path, words, covered, len(colours), "-".join(map(str, main)), group]


def drawings(source: Path, folder: Path) -> list[list[Any]]:
    """Rows of the drawings of OpenMoji, unpacked to ``folder``."""
    with tarfile.open(source / "images.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    with (source / "captions.tsv").open(encoding="utf-8") as file:
        entries = [*csv.DictReader(file, delimiter="\t")]
    return [
        row_of(folder / each["file"], f"{each['caption']}, {each['tags'].partition(',')[0]}", each["group"])
        for each in entries
    ]


def shapes(folder: Path) -> list[list[Any]]:
    """Rows of drawn shapes for a short try."""
    rng, rows = random.Random(0), list[list[Any]]()
    for number in range(90):
        image, size, round_ = Image.new("RGBA", (12, 12)), rng.randint(4, 11), rng.random() < 0.5
        draw = ImageDraw.Draw(image)
        (draw.ellipse if round_ else draw.rectangle)((0, 0, size, size), fill=rng.choice(("red", "blue")))
        image.save(folder / f"{number}.png")
        group = ("round" if round_ else "square") + (" large" if size > 7 else " small")
        rows.append(row_of(folder / f"{number}.png", f"a drawn thing with the number {number}", group))
    return rows


def write_rows(path: Path, rows: list[list[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADER, *rows])
    return path


def trained(name: str, seed: int, rows: list[list[Any]], folder: Path, overrides: list[str]) -> dict[str, float]:
    """Train on four fifths of the rows in a process of its own; return accuracy on the others and the best baseline."""
    rows = random.Random(seed).sample(rows, len(rows))
    tested, place = len(rows) // 5, folder / f"{name}-{seed}"
    place.mkdir()
    test, table = write_rows(place / "test.csv", rows[:tested]), write_rows(place / "table.csv", rows[tested:])
    command = [sys.executable, "-m", "qkv", "train", "classify", "--data", str(table), "--test", str(test)]
    command += ["--label", "group", *INPUTS[name], "--out", str(place / "run"), f"training.seed={seed}", *overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:] or done.stdout[-2000:])
    splits = json.loads((place / "run" / "evaluation.json").read_text())["splits"]
    figures = splits["test"]["figures"]
    validation = next(each for each in splits["validation"]["sections"] if each["kind"] == "contestants")
    print(f"seed {seed}, {name}: kept {validation['rows'][0][0]}, {figures['accuracy']:.2f}", flush=True)
    baseline = max(value for figure, value in figures.items() if figure.startswith("accuracy_of_"))
    return {"accuracy": figures["accuracy"], "baseline": baseline}


def main() -> None:
    parts = parser(__doc__)
    parts.add_argument("--data", type=Path, default=Path(os.environ.get("QKV_DATA", ".")) / "openmoji-captions")
    parts.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parts.add_argument("--minutes", type=float, default=1.0)
    parts.add_argument("--jobs", type=int, default=1, help="runs at once")
    parts.add_argument("--write", type=Path, help="page whose table is written")
    options = parts.parse_args()
    say_where()
    overrides = [f"training.minutes={options.minutes}"]
    if options.smoke:
        overrides = ["training.steps=2", "training.validation.every=2", "training.minutes=null"]
    plan = [(name, seed) for seed in options.seeds[: 1 if options.smoke else None] for name in INPUTS]
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(options.jobs) as pool:
        folder = Path(place)
        rows = shapes(folder) if options.smoke else drawings(options.data, folder)
        runs = [*pool.map(lambda each: trained(*each, rows, folder, overrides), plan)]
    table = list[list[str]]()
    for name in INPUTS:
        some = [figures for (each, _), figures in zip(plan, runs, strict=True) if each == name]
        accuracies, baselines = [each["accuracy"] for each in some], [each["baseline"] for each in some]
        every = " · ".join(f"{value:.2f}" for value in accuracies)
        table.append([name, f"{mean(accuracies):.2f}", every, f"{mean(baselines):.2f}"])
    print_table("group of a drawing: accuracy on the test part, in %", COLUMNS, table)
    if options.write:
        write_table(options.write, "mixed_table: mixed_table.py", COLUMNS, table)


if __name__ == "__main__":
    main()
