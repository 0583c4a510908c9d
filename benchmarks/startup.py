"""Benchmark of start-up times of fresh processes: imports and quick commands; then two first runs.

A first run starts with an empty cache in an empty folder: ``qkv demo``, and ``qkv train`` on a text of 0.9 MB in one
minute.

python benchmarks/startup.py
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from qkv.report.table import print_table
from side_by_side import in_turns, parser, say_where, version

QKV = ("-c", "import sys; sys.argv[0] = 'qkv'; from qkv.cli.main import main; main()")
OURS = {
    "import qkv": ("-c", "import qkv"),
    "qkv --help": (*QKV, "--help"),
    "qkv schema": (*QKV, "schema"),
    "qkv cost gpt2": (*QKV, "cost", "gpt2"),
}
PEERS = {
    "python alone": ("-c", ""),
    "import torch": ("-c", "import torch"),
    "import transformers, one model class": ("-c", "from transformers import GPT2LMHeadModel"),
    "import x_transformers": ("-c", "import x_transformers"),
}
NEEDS = {"import transformers, one model class": "transformers", "import x_transformers": "x-transformers"}


def start(arguments: tuple[str, ...]) -> None:
    """Run one process to its end; exit with its error message if it fails."""
    done = subprocess.run([sys.executable, *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr.strip() or done.returncode}")


FIRST_RUNS = {"qkv demo": ("demo",), "qkv train my.txt --minutes 1": ("train", "my.txt", "--minutes", "1")}
SMOKE = {"qkv demo": ("demo", "training.steps=3", "model.num_layers=1")}
_CHARACTERS = 900_000


def first_run(arguments: tuple[str, ...]) -> tuple[object, ...]:
    """Seconds: estimated before the start, estimated after the first steps, taken; steps and validation loss."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "my.txt").write_text(text(_CHARACTERS))
        began = time.perf_counter()
        environment = {**os.environ, "QKV_CACHE": str(Path(folder) / "cache")}
        done = subprocess.run(
            [sys.executable, *QKV, *arguments, "--out", "run"],
            cwd=folder,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        taken = time.perf_counter() - began
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)}: {done.stderr.strip() or done.returncode}")
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    promised = [round(row["planned_seconds"]) for row in rows if "planned_seconds" in row]
    losses = [row["val_loss"] for row in rows if "val_loss" in row]
    return promised[0], promised[-1], round(taken), max(row["step"] for row in rows), round(min(losses), 3)


def text(characters: int) -> str:
    """Sentences of random words with a natural frequency distribution."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(5000)]
    weights = [1 / rank for rank in range(1, 5001)]
    return " ".join(
        word if i % 12 else f"{word}." for i, word in enumerate(draw.choices(words, weights, k=characters // 4))
    )[:characters]


def main() -> None:
    """Time all processes in turns, then the first runs in sequence."""
    asked = parser(__doc__ or "").parse_args()
    say_where("transformers", "x-transformers")
    sides = dict(list(OURS.items())[:2]) if asked.smoke else {**OURS, **PEERS}
    for name in [name for name, package in NEEDS.items() if name in sides and version(package) is None]:
        print(f"left out: {name} (not installed)")
        del sides[name]
    times = in_turns(
        {name: partial(start, arguments) for name, arguments in sides.items()}, 1 if asked.smoke else asked.repeats
    )
    rows = [(name, round(t.best, 3), round(t.middle, 3), f"{t.spread:.0%}") for name, t in times.items()]
    print_table("\nfresh processes", ["process", "seconds, best", "median", "spread"], rows)
    if "import torch" in times:
        print(f"ratio import torch / import qkv: {times['import torch'].best / times['import qkv'].best:.1f}")
    runs = [(name, *first_run(arguments)) for name, arguments in (SMOKE if asked.smoke else FIRST_RUNS).items()]
    print_table(
        "\nfirst run", ["command", "seconds estimated", "corrected estimate", "taken", "steps", "validation loss"], runs
    )


if __name__ == "__main__":
    main()
