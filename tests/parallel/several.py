"""One of several processes that train runs together: ``python -m tests.parallel.several RANK SIZE FOLDER``.

``FOLDER/runs.json`` holds the recipes by name, and ``FOLDER/NAME`` becomes the run. The process writes the losses,
gradient norms and collectives of each run to ``FOLDER/SIZE-RANK.json``, or the sentence with which it was refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.models.build import build
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.system.world import ALONE, ProcessGroupWorld, World
from qkv.training.loop import train
from qkv.training.setup import Setup
from qkv.training.steps.divided import gradients_of
from qkv.training.steps.gradients import StepGradient
from qkv.training.watch.events import Event, Stepped


class Collectives(TorchDispatchMode):
    """Count of the collectives of a step's gradient, by the name of torch's operator, beside what is planned."""

    def __init__(self) -> None:
        super().__init__()
        self.counts, self.planned = Counter[str](), dict[str, int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.counts[func.__name__.partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))

    def gradients_of(self, setup: Setup) -> StepGradient:
        """Return the gradient of a run, of which the first step is counted."""
        own = gradients_of(setup)
        plain = own.backward

        def counted(loss: Any, batches: Any, *how: Any) -> Any:
            own.backward = plain  # type: ignore[method-assign]
            self.planned = own.collectives(len(batches))
            with self:
                return plain(loss, batches, *how)

        own.backward = counted  # type: ignore[method-assign]
        return own


def trained(recipe: Recipe, folder: Path, world: World = ALONE, double: bool = True) -> dict[str, Any]:
    """Train ``recipe``, in float64 if ``double``; return losses and gradient norms by step, or why it was refused."""
    losses, norms = list[float](), list[float]()

    def tell(event: Event) -> None:
        if isinstance(event, Stepped):
            losses.append(event.loss)
            norms.append(event.grad_norm)

    before, collectives = torch.get_default_dtype(), Collectives()
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    try:
        with (
            mock.patch("qkv.training.setup.build", lambda *how: build(*how).to(torch.get_default_dtype())),
            mock.patch("qkv.training.loop.gradients_of", collectives.gradients_of),
        ):
            train(recipe, folder, on_event=tell, world=world)
    except UserError as error:
        return {"refused": str(error)}
    finally:
        torch.set_default_dtype(before)
    return {"losses": losses, "norms": norms, "counted": dict(collectives.counts), "planned": collectives.planned}


def together(folder: Path, size: int, recipes: Mapping[str, Recipe]) -> list[dict[str, Any]]:
    """Train recipes by ``size`` processes in ``folder``; return what each process wrote."""
    folder.mkdir(exist_ok=True)
    (folder / "runs.json").write_text(json.dumps({name: recipe.to_dict() for name, recipe in recipes.items()}))
    command = [sys.executable, "-m", "tests.parallel.several"]
    environment = os.environ | {"QKV_WITHOUT": "native"}  # nothing is compiled, which would take most of the time
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(folder)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    try:
        errors = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert not any(process.returncode for process in processes), "\n".join(errors)
    return [json.loads((folder / f"{size}-{rank}.json").read_bytes()) for rank in range(size)]


def main(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
    world = ProcessGroupWorld(timeout=60)
    recipes = json.loads((folder / "runs.json").read_bytes())
    results = {name: trained(Recipe.parse(recipe), folder / name, world) for name, recipe in recipes.items()}
    (folder / f"{size}-{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
