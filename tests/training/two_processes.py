"""One of two processes that train a run together, with a clock, kernel timings and signals of its own.

    python -m tests.training.two_processes RANK FOLDER TEXT

The process trains alone, in ``FOLDER/alone-RANK``, to show what it would decide by itself; then both train the run in
``FOLDER/run``: a signal to the second process stops them, and a second start goes on to the end. What the process
decided and wrote is in ``FOLDER/RANK.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.ops.clock import inject
from tests.training.test_plan import Ticks, budgeted

from qkv.ops.selection.choices import all_choices
from qkv.system.world import ALONE, ProcessGroupWorld, World
from qkv.training.interrupt import Interrupted
from qkv.training.loop import train
from qkv.training.watch.events import Ended, Event, Planned, Stepped

CUT = 13
"""Step after which the second process gets a signal."""
SECONDS = ((1.0, 0.8), (0.5, 2.0))
"""Seconds of an update by each process's clock, in rehearsal and afterwards."""
WRITING = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.chmod"}


def record_writes(folder: Path) -> list[str]:
    """Return a list to which every write to ``folder`` by this process is added."""
    writes: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not arguments or not str(arguments[0]).startswith(str(folder)):
            return
        if event in WRITING or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            writes.append(f"{event} {arguments[0]}")

    sys.addaudithook(hook)
    return writes


def start(text: Path, folder: Path, rank: int, world: World, then: Callable[[Event], object]) -> dict[str, Any]:
    """Train the run in ``folder`` until its end or a signal; return what was decided."""
    decided: dict[str, Any] = {"planned": [], "steps": 0, "signal": None, "weights": ""}

    def tell(event: Event) -> None:
        if isinstance(event, Planned):
            decided["planned"].append((event.step, event.steps))
        if isinstance(event, Stepped):
            decided["steps"] = event.step
            decided["precision"] = [choice.twin for choice in all_choices() if choice.op == "precision"]
        if isinstance(event, Ended):
            decided["message"] = event.message
        then(event)

    recipe = budgeted(text, 0.5)
    recipe = recipe.changed(training=recipe.training.changed(precision="bf16"))
    with pytest.MonkeyPatch.context() as patch:
        inject(patch, lambda name: 100.0 if name == ("fp32", "bf16")[rank == 0] else 1.0)
        ticks = Ticks(patch, *SECONDS[rank])
        try:
            run = train(recipe, folder, on_event=ticks.listen(tell), world=world)
        except Interrupted as stopped:
            decided["signal"] = stopped.number.name
            return decided
    state = run.model.state_dict()
    content = b"".join(state[name].contiguous().numpy().tobytes() for name in sorted(state))
    return decided | {"weights": hashlib.sha256(content).hexdigest()}


def main(rank: int, folder: Path, text: Path) -> None:
    torch.set_num_threads(1)
    writes = record_writes(folder / "run")
    found: dict[str, Any] = {"alone": start(text, folder / f"alone-{rank}", rank, ALONE, lambda event: None)}
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    world = ProcessGroupWorld()

    def cut(event: Event) -> None:
        if rank == 1 and isinstance(event, Stepped) and event.step == CUT:
            os.kill(os.getpid(), signal.SIGTERM)

    found["cut"] = start(text, folder / "run", rank, world, cut)
    found["resumed"] = start(text, folder / "run", rank, world, lambda event: None)
    found["writes"] = writes
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
