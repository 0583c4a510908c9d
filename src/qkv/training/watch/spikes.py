"""Loss spikes in training: their updates are skipped or rolled back, if the recipe says so.

A spike is decided from losses that the checkpoint holds, and the decision is stored before it takes effect, so that a
resumed run decides as one that was never stopped.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from qkv.lens.health.spikes import LONGEST, SpikeDetector
from qkv.runs.storage.checkpoint import Checkpoint, CheckpointStore, load_weights, read_checkpoint, weights
from qkv.runs.storage.files import clear_errors, remove
from qkv.system.errors import UserError
from qkv.system.files import write_file
from qkv.system.world import World
from qkv.training import random_state
from qkv.training.optim.optimisers import Optimizer

Action = Literal["skip", "rollback"]
DECISIONS = "spikes.json"
ANCHORS = "anchors"
DISTANCE = 100
"""Number of steps between two anchors, the states to which a run returns; PaLM (Chowdhery et al. 2022, section 5.1)
returned to about 100 steps before a spike.
"""


@dataclass(frozen=True)
class Decision:
    """Decision on a spike at ``step``, whose ``loss`` exceeded ``limit``: its update is skipped, or the weights and the
    optimiser return to those after step ``to`` as well. The batches since then are not read again.
    """

    step: int
    loss: float | None
    limit: float
    action: Action
    to: int

    @property
    def sentence(self) -> str:
        """Sentence for the user."""
        loss = "not finite" if self.loss is None else f"{self.loss:.4g}, above {self.limit:.4g}"
        how = (
            "its update is skipped"
            if self.action == "skip"
            else f"the weights of step {self.to:,} return, and training goes on with the next batch"
        )
        return f"step {self.step:,}: the loss is {loss}, a spike; {how}"


class SpikeGuard:
    """Guard of a run with ``training.spikes`` skip or rollback: decides for each step whether its update is made."""

    def __init__(self, folder: Path, action: Action, world: World):
        self.path, self.world = folder / DECISIONS, world
        self.action: Action = action
        self.anchors = CheckpointStore(folder / "resume" / ANCHORS, 2, world)
        self._stored = {decision.step: decision for decision in read_decisions(folder)}

    def start(self, step: int, model: nn.Module, wide: nn.Module | None, optimizer: Optimizer) -> None:
        """Prepare to go on after ``step``: remove anchors of later steps, and set the first one."""
        self.world.lead(lambda: self._remove_after(step))
        self.passed(step, model, wide, optimizer)

    def _remove_after(self, step: int) -> None:
        for path in self.anchors.paths():
            if _step(path) > step:
                remove(path)

    def passed(self, step: int, model: nn.Module, wide: nn.Module | None, optimizer: Optimizer) -> None:
        """Save an anchor after ``step``, if one is due."""
        if self.action == "skip" or step % DISTANCE or any(_step(path) == step for path in self.anchors.paths()):
            return
        tensors = {
            "weights": weights(model, wide),
            "optimizer": optimizer.state_dict(),
            "random": random_state.capture(),
        }
        self.anchors.save(Checkpoint(step, tensors, {}))

    def decide(self, step: int, loss: float, detector: SpikeDetector) -> Decision | None:
        """Return the decision on ``step``, None if its update is made. A new decision is on the disk on return."""
        if step in self._stored:
            detector.length += 1
            return self._stored[step]
        limit = detector.limit()
        if math.isfinite(loss):
            if not detector.read(loss):
                return None
        elif math.isinf(limit) or detector.length >= LONGEST:
            return None  # the run fails
        else:
            detector.length += 1
        to = DISTANCE * ((step - 1) // DISTANCE) if self.action == "rollback" else step - 1
        self._stored[step] = Decision(step, loss if math.isfinite(loss) else None, limit, self.action, to)
        self.world.lead(self._store)
        return self._stored[step]

    def _store(self) -> None:
        content = [asdict(self._stored[step]) for step in sorted(self._stored)]
        with clear_errors(str(self.path)):
            write_file(self.path, json.dumps(content, indent=1) + "\n")

    def carry_out(self, decision: Decision, model: nn.Module, wide: nn.Module | None, optimizer: Optimizer) -> None:
        """Return to the anchor of ``decision``, if it is a rollback."""
        if decision.action == "skip":
            return
        path = next((path for path in self.anchors.paths() if _step(path) == decision.to), None)
        if path is None:
            raise UserError(
                f"{self.anchors.folder} has no state of step {decision.to}, to which the spike of step "
                f"{decision.step} returns; name another run folder"
            )
        tensors = read_checkpoint(path).tensors
        load_weights(model, tensors["weights"], path, wide)
        optimizer.load_state_dict(tensors["optimizer"])


def read_decisions(folder: Path) -> list[Decision]:
    """Read the decisions on spikes of a run; empty if there are none. Raises ``UserError`` for a damaged file."""
    path = folder / DECISIONS
    if not path.is_file():
        return []
    try:
        return [Decision(**entry) for entry in json.loads(path.read_bytes())]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} does not hold the decisions on a run's loss spikes ({error})") from None


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
