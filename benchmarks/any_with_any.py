"""Benchmark of digits matched any with any: spoken with written, drawn with written, spoken with drawn.

    QKV_DATA=folder python benchmarks/any_with_any.py [--seed 1] [--minutes 1] [--write PAGE]

Spoken digits are those of the Free Spoken Digit Dataset, drawn ones the 8 × 8 digits of scikit-learn, written ones
their names. ``qkv train match`` in one line trains a run for each two kinds; a row pairs two of the same digit at
random. Measured is how often the best candidate, and what share of the first five, has the digit of the query, in both
directions, on recordings and drawings that no run was trained on. Words are candidates once each.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np
from PIL import Image

import qkv
from qkv.report.table import print_table
from qkv.runs.run import Run, task_of
from qkv.tasks.multimodal.matching import MatchingTask
from side_by_side import parser, say_where, write_table
from spoken_digits import tones

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PAIRS = (("sound", "text"), ("image", "text"), ("sound", "image"))
COLUMNS = ("pairs", "query", "found", "first is right", "of the first five", "minutes")
Digits = dict[str, dict[int, list[Any]]]
"""Values by kind and digit."""


def spoken(files: list[Path], test: bool) -> dict[int, list[Any]]:
    """Recordings by digit: those of takes 0 to 4, or the others."""
    some = [path for path in files if (int(path.stem.split("_")[2]) < 5) == test]
    digits = sorted({int(path.stem.split("_")[0]) for path in some})
    return {digit: [str(path) for path in some if path.stem.startswith(f"{digit}_")] for digit in digits}


def drawn(folder: Path, digits: list[int], test: bool) -> dict[int, list[Any]]:
    """Files of drawings by digit: every fifth, or the others."""
    from sklearn.datasets import load_digits

    data, folder = load_digits(), folder / ("drawn-test" if test else "drawn")
    folder.mkdir()
    by_digit = dict[int, list[Any]]()
    for number, (pixels, digit) in enumerate(zip(data.images, data.target.tolist(), strict=True)):
        if digit in digits and (number % 5 == 0) == test:
            path = folder / f"{number}.png"
            Image.fromarray((pixels * 15.9).astype(np.uint8)).save(path)
            by_digit.setdefault(digit, []).append(str(path))
    return by_digit


def write_pairs(path: Path, digits: Digits, kinds: tuple[str, str], rows: int, seed: int) -> Path:
    """Write a table of ``rows`` pairs of the same digit."""
    rng, lines = random.Random(seed), [",".join(kinds)]
    for _ in range(rows):
        digit = rng.choice(sorted(digits[kinds[0]]))
        lines.append(",".join(str(rng.choice(digits[kind][digit])) for kind in kinds))
    path.write_text("\n".join(lines) + "\n")
    return path


def right(run: Run, digits: Digits, query: str, other: str) -> tuple[float, float]:
    """Share in % of queries whose first candidate, and of the first five candidates that, have the digit."""
    task, vectors, labels = cast("MatchingTask", task_of(run)), dict[str, np.ndarray](), dict[str, np.ndarray]()
    for kind in (query, other):
        entries = [(digit, value) for digit, values in digits[kind].items() for value in values]
        labels[kind] = np.array([digit for digit, _ in entries])
        vectors[kind] = task.vectors(run.model, run.vocabulary, run.recipe, kind, [v for _, v in entries]).numpy()
    order = np.argsort(-vectors[query] @ vectors[other].T, axis=1, kind="stable")
    same = labels[other][order] == labels[query][:, None]
    five = 1 if other == "text" else 5
    return 100 * float(same[:, 0].mean()), 100 * float(same[:, :five].mean())


def measured(train: Digits, test: Digits, kinds: tuple[str, str], place: Path, options: Any) -> list[list[str]]:
    """Rows of the table for a run that matches two kinds."""
    start, table = perf_counter(), write_pairs(place / "pairs.csv", train, kinds, options.rows, options.seed)
    command = [sys.executable, "-m", "qkv", "train", "match", "--data", str(table), "--out", str(place / "run")]
    command += [f"training.seed={options.seed}", *options.overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:] or done.stdout[-2000:])
    minutes, run = (perf_counter() - start) / 60, qkv.load(place / "run")
    name, rows = " with ".join(kinds), list[list[str]]()
    for query, other in (kinds, kinds[::-1]):
        first, five = right(run, test, query, other)
        rows.append([name, query, other, f"{first:.1f}", f"{five:.1f}" if other != "text" else "–", f"{minutes:.1f}"])
    if kinds == ("sound", "text"):
        listing = place / "sounds.csv"
        listing.write_text("sound\n" + "\n".join(each for some in test["sound"].values() for each in some) + "\n")
        digit = max(test["sound"])
        hits = qkv.search(run, listing, WORDS[digit], top=3)[0]
        print(f"qkv search {WORDS[digit]!r}: {', '.join(Path(hit.text).name for hit in hits)}", flush=True)
    return rows


def main() -> None:
    parts = parser(__doc__)
    parts.add_argument("--data", type=Path, default=Path(os.environ.get("QKV_DATA", ".")) / "fsdd")
    parts.add_argument("--seed", type=int, default=1)
    parts.add_argument("--rows", type=int, default=1500, help="pairs of a table")
    parts.add_argument("--minutes", type=float, default=1.0)
    parts.add_argument("--write", type=Path, help="page whose table is written")
    options = parts.parse_args()
    say_where()
    options.overrides = [f"training.minutes={options.minutes}"]
    if options.smoke:
        options.rows = 40
        options.overrides = ["training.steps=2", "training.validation.every=2", "training.minutes=null"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "clips").mkdir()
        if options.smoke:
            files = tones(folder / "clips")
        else:
            with tarfile.open(options.data / "recordings.tar.gz") as archive:
                archive.extractall(folder / "clips", filter="data")
            files = sorted((folder / "clips").rglob("*.wav"))
        sets = list[Digits]()
        for test in (False, True):
            sounds = spoken(files, test)
            images = drawn(folder, [*sounds], test)
            sets.append({"sound": sounds, "image": images, "text": {digit: [WORDS[digit]] for digit in sounds}})
        rows = list[list[str]]()
        for kinds in PAIRS:
            place = folder / "-".join(kinds)
            place.mkdir()
            rows += measured(*sets, kinds, place, options)
    print_table("digits found, in %", COLUMNS, rows)
    if options.write:
        write_table(options.write, "any_with_any: any_with_any.py", COLUMNS, rows)


if __name__ == "__main__":
    main()
