"""Train recipes in sequence and record their results.

    python recipes/record.py recall_gru sst2_classifier --seeds 1 2 3

``--minutes 5`` selects every recipe whose recorded training took at most 5 minutes per seed. Each run has its own
process and folder. After a kill, the same command continues: finished runs are kept, an interrupted run is resumed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import qkv
from qkv.report.figures import duration
from qkv.spec.files.shipped import located, shipped
from qkv.spec.recipe import Recipe


def planned(recipe: Recipe) -> float | None:
    """Recorded minutes per seed; None if there is no result."""
    if recipe.result and recipe.result.form == "full":
        return recipe.result.minutes
    typed = [entry.minutes for entry in recipe.typed if entry.figure and entry.minutes]
    return typed[0] if typed else None


def seeds_of(recipe: Recipe, asked: Sequence[int]) -> list[int]:
    """Seeds to train: as requested, else those of the recorded result, else the recipe's."""
    if asked:
        return list(asked)
    typed = [entry.seeds for entry in recipe.typed if entry.figure]
    earlier = recipe.result.seeds if recipe.result else typed[0] if typed else ()
    return list(earlier) or [recipe.training.seed]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train recipes in sequence and record their results.")
    parser.add_argument("recipes", nargs="*", metavar="NAME|FILE", help="name of a shipped recipe, or any recipe file")
    parser.add_argument(
        "--minutes", type=float, help="all shipped recipes that take at most this many minutes per seed"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[], help="default: those of the recorded result")
    parser.add_argument("--quick", action="store_true", help="use the short forms")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/recorded"), help="parent of the run folders (default: runs/recorded)"
    )
    parser.add_argument("--plan", action="store_true", help="only print what would be trained, and the estimated time")
    return parser.parse_args()


def chosen(asked: argparse.Namespace) -> list[Path]:
    """Selected recipe files."""
    files = [located(name) for name in asked.recipes]
    if asked.minutes is not None:
        times = {path: planned(qkv.read_recipe(path)) for path in shipped().values()}
        short = [path for path, minutes in times.items() if minutes is not None and minutes <= asked.minutes]
        files += sorted((path for path in short if path not in files), key=lambda path: times[path] or 0.0)
    return files


def say_plan(files: Sequence[Path], asked: argparse.Namespace) -> None:
    """Print the recipes to train and their recorded times."""
    total = 0.0
    for path in files:
        recipe = qkv.read_recipe(path)
        minutes, seeds = planned(recipe), seeds_of(recipe, asked.seeds)
        total += (minutes or 0.0) * len(seeds)
        took = duration(60 * minutes) if minutes else "unknown time"
        print(f"{path.stem}: seeds {', '.join(map(str, seeds))}, {took} each")
    print(
        f"{len(files)} recipes, {duration(60 * total)} of training by the recorded results (less for short forms; "
        "evaluation not included)"
    )


def record(path: Path, asked: argparse.Namespace) -> int:
    """Train one recipe for each seed and record it; return the exit code of the first failed command, else 0."""
    seeds = seeds_of(qkv.read_recipe(path), asked.seeds)
    form = ["--quick"] if asked.quick else []
    folders = [asked.runs / f"{path.stem}{'-quick' * asked.quick}-seed{seed}" for seed in seeds]
    for seed, folder in zip(seeds, folders, strict=True):
        code = _qkv("train", str(path), f"training.seed={seed}", "--out", str(folder), *form)
        if code:
            return code
    return _qkv("record", *map(str, folders), str(path))


def _qkv(*command: str) -> int:
    print(f"\nqkv {' '.join(command)}", flush=True)
    return subprocess.run([sys.executable, "-m", "qkv", *command], check=False).returncode


def main() -> int:
    """Train and record each recipe; failures are listed at the end, an interruption stops."""
    asked = arguments()
    try:
        files = chosen(asked)
        say_plan(files, asked)
    except qkv.UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    failed: list[str] = []
    for path in [] if asked.plan else files:
        code = record(path, asked)
        if code >= 128 or code < 0:
            return 128 - code if code < 0 else code
        failed += [path.stem] if code else []
    if failed:
        sys.stderr.write(f"not recorded: {', '.join(failed)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
