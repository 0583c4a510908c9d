"""How much memory a training step takes, from the shares of its parts. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING

from qkv.inspection.shares import FLOAT, Share
from qkv.spec.errors import UserError
from qkv.spec.training import AdamW, Muon, Optimizer, Training

if TYPE_CHECKING:
    from qkv.inspection.learned import Trained


@dataclass(frozen=True)
class Memory:
    """Bytes of a training step. ``activations``: kept from the forward to the backward pass. ``peak``: the most at any moment."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int


@dataclass(frozen=True)
class Stage:
    """What is kept or computed again as a whole: an embedding, a block, a final norm; ``branches`` in the order of the data's way.

    stream: bytes of the vectors that come in, 0 for ids.   beside: bytes of gradients of other vectors that live while it goes backward.
    reversible: True if nothing is kept of it, what came in included; ``stream`` is then what its backward pass makes of that.
    """

    branches: Sequence[Share]
    stream: int
    beside: int = 0
    reversible: bool = False

    @property
    def saved(self) -> int:
        """Bytes kept for the backward pass."""
        return sum(branch.saved for branch in self.branches)


@singledispatch
def optimizer_bytes(optimizer: Optimizer, total: Share) -> int:
    """Bytes an optimiser remembers for parameters ``total``; one defined elsewhere joins with ``optimizer_bytes.register``."""
    raise UserError(
        f"no cost is registered for the optimiser {optimizer.kind!r}; register it with qkv.inspection.training_memory.optimizer_bytes"
    )


@optimizer_bytes.register
def _adamw(optimizer: AdamW, total: Share) -> int:
    return 2 * FLOAT * total.parameters


@optimizer_bytes.register
def _muon(optimizer: Muon, total: Share) -> int:
    return FLOAT * total.matrices + 2 * FLOAT * (total.parameters - total.matrices)


def training_memory(stages: Sequence[Stage], ending: Stage, table: int, total: Share, training: Training) -> Memory:
    """``stages`` in the order of the data's way, ``ending`` the last norm and the head, ``table`` the bytes of the token table's gradient.

    Weights, gradients and optimiser are fp32 in every precision.
    """
    weights = FLOAT * total.parameters
    optimizer = optimizer_bytes(training.optimizer, total)
    # With recomputation a block keeps its input alone, and all else again while its own backward pass runs.
    whole = [stage.saved for stage in stages]
    again = [(training.recompute or stage.reversible) and len(stage.branches) > 0 and stage.stream > 0 for stage in stages]
    kept = [_kept(stage, repeated) for stage, repeated in zip(stages, again, strict=True)]
    most = max((size for size, repeated in zip(whole, again, strict=True) if repeated), default=0)
    busiest = max(_moments(stages, kept, ending, table, 0 if training.accumulate == 1 else weights))
    return Memory(weights, weights, optimizer, sum(kept) + most + ending.saved, weights + optimizer + max(busiest, weights))


def _kept(stage: Stage, repeated: bool) -> int:
    """Bytes that are there until the backward pass comes to this stage."""
    if stage.reversible:
        return 0
    return stage.stream if repeated else stage.saved


def partly(whole: Memory, learned: Trained, training: Training) -> Memory:
    """``whole`` where only some parameters learn: these alone have gradients and a state of the optimiser, and adapters are weights too.

    The peak is an upper bound: activations as if all learned, and all gradients at once.
    """
    weights, gradients = whole.weights + FLOAT * learned.added, FLOAT * learned.parameters
    optimizer = optimizer_bytes(training.optimizer, Share(parameters=learned.parameters, matrices=learned.matrices))
    return Memory(weights, gradients, optimizer, whole.activations, weights + gradients + optimizer + whole.activations)


def _moments(stages: Sequence[Stage], kept: list[int], ending: Stage, table: int, accumulated: int) -> list[int]:
    """Bytes beside weights and optimiser, going backward from head to embedding: activations go as gradients come.

    ``accumulated``: bytes of gradients that are there from the start.
    """
    below, (last,) = sum(kept), ending.branches
    moments = [below + last.saved + last.working + accumulated]
    # A tied head leaves its gradient in the token table's.
    gradients = accumulated or max(FLOAT * last.parameters, table)
    for stage, bytes_kept in zip(reversed(stages), reversed(kept), strict=True):
        below -= bytes_kept
        if not stage.stream:
            # The table's gradient from below is whole before it is added to the one from the head.
            moments.append(below + stage.saved + stage.beside + table + gradients)
            continue
        inside = stage.saved
        for branch in reversed(stage.branches):
            gradients += 0 if accumulated else FLOAT * branch.parameters
            moments.append(below + inside + branch.working + stage.stream + stage.beside + gradients)
            inside -= branch.saved
    return moments
