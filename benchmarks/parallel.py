"""Benchmark of several processes: the same losses, gradients and text as one process, with rows and weights divided.

    python benchmarks/parallel.py --write benchmarks/results/parallel.md

Each row is a run of 20 steps by 2 or 4 processes on this machine, beside the same run by one process: the greatest
difference of a loss in float64 and float32, that of the gradient of the first step relative to its norm, whether the
greedy text of both models is equal, and the collectives of a step, counted and as planned. The processes share the
cores, so that the time of a step shows what the exchanges cost, and not what more machines would gain.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections import Counter
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import qkv
from qkv.models.build import build
from qkv.parallel.shards import whole
from qkv.report.table import print_table
from qkv.spec.recipe import Recipe
from qkv.system.world import ALONE, ProcessGroupWorld, World
from qkv.training.loop import Trainer, train
from qkv.training.setup import Setup
from qkv.training.steps.divided import gradients_of
from qkv.training.steps.gradients import StepGradient
from qkv.training.watch.events import Event, Stepped
from side_by_side import parser, say_where, write_table

STEPS, WORDS, BATCHES = 20, 60, 2
COLUMNS = (
    "processes",
    "replicate × shard",
    "loss, float64",
    "loss, float32",
    "gradient",
    "same text",
    "collectives of a step",
    "as planned",
    "ms a step",
    "of one process",
)
MESHES = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2))


class Measured(NamedTuple):
    """Results of one process: losses, gradient of the first step, seconds of a step, greedy text, and collectives."""

    losses: list[float]
    gradient: list[float]
    seconds: float
    text: str
    counted: dict[str, int]
    planned: dict[str, int]


def write_text(path: Path) -> None:
    """Write a text that follows simple rules."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 6))) for _ in range(WORDS)]
    now, text = 0, list[str]()
    for _ in range(20_000):
        text.append(words[now])
        now = (3 * now + draw.randint(0, 2)) % WORDS
    path.write_text(" ".join(text))


def recipe_of(text: Path, replicate: int, shard: int, smoke: bool) -> Recipe:
    """Build the recipe of a run with 7 rows a batch, so that the processes have different numbers of rows."""
    width = 16 if smoke else 32
    return Recipe.parse(
        {
            "data": {"source": str(text), "tokenizer": "characters"},
            "model": {
                "width": width,
                "num_layers": 2,
                "context_length": 16 if smoke else 32,
                "blocks": [{"branches": ["attention(4)", "feed_forward"]}],
            },
            "training": {
                "steps": 3 if smoke else STEPS,
                "batch_size": 7,
                "accumulate": BATCHES,
                "optimizer": "muon(lr=0.02)",
                "schedule": "cosine(warmup=5)",
                "validation": {"every": STEPS, "batches": 4},
            },
            "parallel": {"replicate": replicate, "shard": shard},
        }
    )


def measure(recipe: Recipe, folder: Path, world: World, double: bool) -> Measured:
    """Train a run in this process, with others or alone."""
    losses, seconds = list[float](), list[float]()
    watch, descend = Watch(), Trainer.descend

    def timed(trainer: Trainer, *how: Any) -> Any:
        began = time.perf_counter()
        result = descend(trainer, *how)
        seconds.append(time.perf_counter() - began)
        return result

    def tell(event: Event) -> None:
        if isinstance(event, Stepped):
            losses.append(event.loss)

    number = torch.float64 if double else torch.float32
    torch.set_default_dtype(number)
    with (
        mock.patch("qkv.training.setup.build", lambda *how: build(*how).to(number)),
        mock.patch("qkv.training.loop.gradients_of", watch.gradients_of),
        mock.patch.object(Trainer, "descend", timed),
    ):
        run = train(recipe, folder, on_event=tell, world=world)
    torch.set_default_dtype(torch.float32)
    text = qkv.generate(run, "ab", max_new_tokens=40, temperature=0)
    return Measured(losses, watch.gradient, median(seconds[1:]), text, watch.counted, watch.planned)


class Collectives(TorchDispatchMode):
    """Count of the collectives inside, by the name of torch's operator."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.counts[func.__name__.partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


class Watch:
    """Watch of the first step of a run: its gradient, and its collectives, counted and planned."""

    def __init__(self) -> None:
        self.gradient, self.counted, self.planned = list[float](), dict[str, int](), dict[str, int]()

    def gradients_of(self, setup: Setup) -> StepGradient:
        """Return the gradients of a run, whose first call of ``backward`` is watched."""
        own = gradients_of(setup)
        plain = own.backward

        def watched(*how: Any) -> Any:
            own.backward = plain  # type: ignore[method-assign]
            with Collectives() as collectives:
                nats = plain(*how)
            self.counted = dict(collectives.counts)
            self.planned = own.collectives(BATCHES)
            self.gradient = [x for p in own.parameters if p.grad is not None for x in whole(p.grad).flatten().tolist()]
            return nats

        own.backward = watched  # type: ignore[method-assign]
        return own


def together(folder: Path, size: int, recipe: Recipe) -> dict[bool, Measured]:
    """Measure a run by ``size`` processes, in float64 (True) and float32; return what the first one found."""
    folder.mkdir()
    context = get_context("fork")  # the packages are imported once
    processes = [context.Process(target=take_part, args=(rank, size, folder, recipe)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a process failed")
    double, single = json.loads((folder / "measured.json").read_bytes())
    return {True: Measured(*double), False: Measured(*single)}


def take_part(rank: int, size: int, folder: Path, recipe: Recipe) -> None:
    """Measure a run as process ``rank`` of ``size``."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    world = ALONE
    if size > 1:
        dist.init_process_group("gloo", f"file://{folder / 'store'}", timedelta(seconds=120), size, rank)
        world = ProcessGroupWorld(timeout=120)
    measured = [measure(recipe, folder / f"run-{double}", world, double) for double in (True, False)]
    if world.first:
        (folder / "measured.json").write_text(json.dumps(measured))


def compared(smoke: bool, page: Path | None) -> list[list[str]]:
    """Measure all meshes; return the rows of the table, written into ``page`` after each of them."""
    rows, base = list[list[str]](), dict[bool, Measured]()
    with tempfile.TemporaryDirectory() as place:
        text = Path(place) / "text.txt"
        write_text(text)
        for replicate, shard in MESHES[: 3 if smoke else None]:
            recipe = recipe_of(text, replicate, shard, smoke)
            found = together(Path(place) / f"{replicate}-{shard}", replicate * shard, recipe)
            base = base or found
            rows.append(_row(replicate, shard, found, base))
            if page:
                write_table(page, "parallel: benchmarks/parallel.py", COLUMNS, rows)
    return rows


def _row(replicate: int, shard: int, found: dict[bool, Measured], base: dict[bool, Measured]) -> list[str]:
    losses = [
        max(abs(a - b) for a, b in zip(found[double].losses, base[double].losses, strict=True))
        for double in (True, False)
    ]
    exact, one = (torch.tensor(some[True].gradient, dtype=torch.float64) for some in (found, base))
    ours, theirs = found[False], base[False]
    counted = ", ".join(f"{count} {name.strip('_')}" for name, count in sorted(ours.counted.items()))
    return [
        str(replicate * shard),
        f"{replicate} × {shard}",
        *(f"{loss:.1e}" for loss in losses),
        f"{float((exact - one).norm() / one.norm()):.1e}",
        "yes" if ours.text == theirs.text and found[True].text == base[True].text else "no",
        counted or "none",
        "yes" if ours.counted == ours.planned else f"no: {ours.planned}",
        f"{1000 * ours.seconds:.0f}",
        f"{ours.seconds / theirs.seconds:.2f}",
    ]


if __name__ == "__main__":
    options = parser(str(__doc__))
    options.add_argument("--write", type=Path, metavar="PAGE", help="write the table into a page")
    given = options.parse_args()
    os.environ["QKV_DEVICE"] = "cpu"
    print("several processes and one")
    say_where()
    table = compared(given.smoke, given.write)
    print_table("\nseveral processes beside one", COLUMNS, table)
