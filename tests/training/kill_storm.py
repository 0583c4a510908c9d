"""SIGKILL at random moments: ``python -m tests.training.kill_storm --kills 20 --steps 200``.

One run is left alone; a second one of the same recipe is killed again and again, in the middle of steps, of writes, of
validations, and started again each time. At the end both folders must hold the same losses, weights and optimiser
state, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from qkv.runs.metrics import rows_of
from qkv.runs.storage.checkpoint import CheckpointStore
from qkv.runs.storage.files import read_tensors
from qkv.spec.recipe import Recipe
from qkv.training.environment import FILE
from qkv.training.loop import train
from qkv.training.watch.events import Event, Stepped

STEPS = 24
"""How long the runs of the tests are: three checkpoints, two validations and one more at the end."""


def ignore(event: Event) -> None:
    """Listen to a run without a word."""


def write_text(path: Path, seed: int = 0, words: int = 3000) -> Path:
    """A text of made-up words that a small model can learn something from."""
    draw = random.Random(seed)
    known = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 5))) for _ in range(40)]
    path.write_text(" ".join(draw.choices(known, k=words)).replace("ab ", "ab.\n"))
    return path


def small_recipe(text: Path, steps: int, **training: Any) -> Recipe:
    """Two layers with dropout, attention and a GRU, under Muon, saved and measured often."""
    branches = ["attention(num_heads=2, dropout=0.1)", "gru", {"kind": "feed_forward", "dropout": 0.1}]
    model = {"width": 16, "num_layers": 2, "context_length": 16, "blocks": [{"branches": branches, "dropout": 0.1}]}
    settings = {
        "steps": steps,
        "batch_size": 3,
        "accumulate": 2,
        "optimizer": "muon(lr=0.02)",
        "schedule": "cosine(warmup=5)",
        "validation": {"every": 10, "batches": 2},
        "checkpoints": {"every": 7},
        "sample_every": 15,
    }
    return Recipe.parse(
        {"data": str(text), "model": model, "training": settings | training, "sample": {"max_new_tokens": 8, "seed": 1}}
    )


def differences(a: Path, b: Path) -> list[str]:
    """What is not equal, bit for bit, in two run folders: losses, best weights, and the newest checkpoint."""
    found = []
    keys = ("step", "loss", "val_loss", "grad_norm", "lr", "sample")
    rows = [
        [{k: row[k] for k in keys if k in row} for row in rows_of(folder) if "event" not in row] for folder in (a, b)
    ]
    if rows[0] != rows[1]:
        found.append("metrics.jsonl")
    tensors = [read_tensors(folder / "model.safetensors")[0] for folder in (a, b)]
    found += [
        f"model.safetensors/{name}" for name in tensors[0].keys() | tensors[1].keys() if not _equal(name, *tensors)
    ]
    saved = [CheckpointStore(folder / "resume").load(lambda _: None) for folder in (a, b)]
    if saved[0] is None or saved[1] is None or saved[0].step != saved[1].step:
        return [*found, "resume: other steps"]
    for part in saved[0].tensors:
        pair = [dict(c.tensors[part]) for c in saved if c]
        found += [f"resume/{part}/{name}" for name in pair[0].keys() | pair[1].keys() if not _equal(name, *pair)]
    return found


def _equal(name: str, a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return name in a and name in b and torch.equal(a[name], b[name])


def live(recipe: Recipe, folder: Path, updates: int | None, delay: float) -> int:
    """Train in a process of its own and kill it ``delay`` seconds after its ``updates``-th update; how many it made."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _child(recipe, folder, writer)
    os.close(writer)
    seen = 0
    while (updates is None or seen < updates) and os.read(reader, 1):
        seen += 1
    if updates is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)  # does nothing to a process that has ended and waits to be collected
    seen += len(os.read(reader, 1 << 16))
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a run failed; see above")
    return seen


def _child(recipe: Recipe, folder: Path, writer: int) -> None:
    try:
        train(recipe, folder, on_event=lambda event: os.write(writer, b".") if isinstance(event, Stepped) else None)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def storm(folder: Path, kills: int, steps: int, seed: int) -> list[str]:
    """Run the comparison in ``folder``; what differs."""
    torch.set_num_threads(1)
    draw = random.Random(seed)
    recipe = small_recipe(write_text(folder / "text.txt"), steps)
    live(recipe, folder / "straight", None, 0)
    # Two new runs each measure which paths of the ops are fastest; only with the same ones are they comparable.
    (folder / "killed" / "resume").mkdir(parents=True)
    shutil.copy(folder / "straight" / "resume" / FILE, folder / "killed" / "resume")
    for kill in range(kills):
        updates = live(recipe, folder / "killed", draw.randint(1, max(2, 2 * steps // kills)), draw.uniform(0, 0.02))
        newest = next((path.name for path in CheckpointStore(folder / "killed" / "resume").paths()), "no checkpoint")
        print(f"killed {kill + 1} of {kills} after {updates} updates; {newest}")
    live(recipe, folder / "killed", None, 0)
    return differences(folder / "straight", folder / "killed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = storm(Path(folder), options.kills, options.steps, options.seed)
    print(f"different: {', '.join(found)}" if found else "losses, weights and optimiser state are equal, bit for bit")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
