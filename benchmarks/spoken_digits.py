"""Benchmark of spoken digits: accuracy on the official takes, and on each speaker that is never trained on, in turn.

    python benchmarks/spoken_digits.py [--data FOLDER] [--seeds 1337 1 2] [--jobs 2] [--write PAGE]

FOLDER holds ``recordings.tar.gz`` of the Free Spoken Digit Dataset; default: ``QKV_DATA``/fsdd. Every run is the recipe
``fsdd_digits``, on the rows of the other speakers or of the official training takes; beside it stands the baseline of
the run, a linear model of MFCC statistics. Runs are in processes of their own, ``--jobs`` at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

import qkv
from qkv.report.table import print_table
from side_by_side import parser, say_where, write_table

RECIPE = "fsdd_digits"
OFFICIAL = "official takes"
COLUMNS = ("tested on", "clips", "seed", "accuracy", "MFCC", "minutes")


class Division(NamedTuple):
    """Files of training and of test; ``name``: a speaker who is in the test part only, or ``OFFICIAL``."""

    name: str
    train: list[Path]
    test: list[Path]


def divisions(files: list[Path]) -> list[Division]:
    """The official division (takes 0 to 4 are for testing) and one for each speaker."""
    parts = {path: path.stem.split("_") for path in files}
    test = [path for path in files if int(parts[path][2]) < 5]
    every = [Division(OFFICIAL, [path for path in files if path not in set(test)], test)]
    for speaker in sorted({words[1] for words in parts.values()}):
        own = [path for path in files if parts[path][1] == speaker]
        every.append(Division(speaker, [path for path in files if parts[path][1] != speaker], own))
    return every


def table(files: list[Path], path: Path) -> Path:
    """Write the table of files with their digits and speakers."""
    lines = [f"{file},{file.stem.split('_')[0]},{file.stem.split('_')[1]}" for file in files]
    path.write_text("sound,label,speaker\n" + "\n".join(lines) + "\n")
    return path


def trained(division: Division, seed: int, folder: Path, overrides: list[str]) -> list[str]:
    """Row of the table of one run, which is trained in a process of its own."""
    start = perf_counter()
    place = folder / f"{division.name.replace(' ', '_')}-{seed}"
    place.mkdir()
    train, test = (table(getattr(division, part), place / f"{part}.csv") for part in ("train", "test"))
    settings = [f"data.source={train}", f"data.test={test}", f"training.seed={seed}", *overrides]
    command = [sys.executable, "-m", "qkv", "train", RECIPE, "--out", str(place / "run"), *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:] or done.stdout[-2000:])
    evaluation = qkv.load(place / "run").evaluation
    assert evaluation is not None
    figures = evaluation["splits"]["test"]["figures"]
    return [
        division.name,
        f"{len(division.test):,}",
        str(seed),
        f"{figures['accuracy']:.2f}",
        f"{figures['accuracy_of_mfcc']:.2f}",
        f"{(perf_counter() - start) / 60:.1f}",
    ]


def unpacked(source: Path, folder: Path) -> list[Path]:
    """Recordings of the archive in ``source``, unpacked to ``folder``."""
    with tarfile.open(source / "recordings.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return sorted(folder.rglob("*.wav"))


def tones(folder: Path) -> list[Path]:
    """Recordings of tones for a short try: three digits, two speakers, four takes."""
    from qkv.data.records.sounds.sound_files import Sound, sound_bytes

    paths = list[Path]()
    for digit in range(3):
        for speaker in ("low", "high"):
            for take in (0, 1, 5, 6, 7):
                wave = np.sin(np.arange(3000) * (0.1 + 0.2 * digit + 0.01 * take + 0.03 * (speaker == "high")))
                paths.append(folder / f"{digit}_{speaker}_{take}.wav")
                paths[-1].write_bytes(sound_bytes(Sound(wave.astype(np.float32) / 2, 8000)))
    return paths


def main() -> None:
    parts = parser(__doc__)
    parts.add_argument("--data", type=Path, default=Path(os.environ.get("QKV_DATA", ".")) / "fsdd")
    parts.add_argument("--only", nargs="+", default=None, help="speakers, or 'official takes'; default: all")
    parts.add_argument("--seeds", type=int, nargs="+", default=[1337])
    parts.add_argument("--jobs", type=int, default=1, help="runs at once")
    parts.add_argument("--steps", type=int, default=None, help="steps of a run; default: the recipe's")
    parts.add_argument("--write", type=Path, help="page whose table is written")
    options = parts.parse_args()
    say_where()
    overrides = [] if options.steps is None else [f"training.steps={options.steps}"]
    if options.smoke:
        overrides = ["training.steps=2", "training.validation.every=2", "training.schedule.warmup=0", "model.width=32"]
        overrides += ["data.batching.buckets=1", "training.batch_size=4", "training.checkpoints.every=2"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "clips").mkdir()
        files = tones(folder / "clips") if options.smoke else unpacked(options.data, folder / "clips")
        tested = [each for each in divisions(files) if options.only is None or each.name in options.only]
        plan = [(division, seed) for seed in options.seeds for division in tested]
        with ThreadPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(lambda entry: trained(*entry, folder, overrides), plan))
    print_table("accuracy on spoken digits, in %", COLUMNS, rows)
    if options.write:
        write_table(options.write, "spoken_digits: spoken_digits.py", COLUMNS, rows)


if __name__ == "__main__":
    main()
