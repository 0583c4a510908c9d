"""Memory of a training step, from the shares of its parts. Imports no torch."""

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
    """Bytes of a training step. ``activations``: saved for the backward pass. ``peak``: maximum at any time."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int


@dataclass(frozen=True)
class Stage:
    """Unit of saving and recomputation: an embedding, a block or a final norm, with ``branches`` in order of execution.

    stream: bytes of the input vectors, 0 for ids.   beside: bytes of other gradients alive during its backward pass.
    reversible: True if nothing is saved, not even the input; ``stream`` is then what its backward pass reconstructs.
    """

    branches: Sequence[Share]
    stream: int
    beside: int = 0
    reversible: bool = False

    @property
    def saved(self) -> int:
        """Bytes saved for the backward pass."""
        return sum(branch.saved for branch in self.branches)


@singledispatch
def optimizer_bytes(optimizer: Optimizer, total: Share) -> int:
    """Bytes of the optimiser state for parameters ``total``. User-defined optimisers use ``optimizer_bytes.register``."""
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
    """Estimate the memory of a training step. Weights, gradients and optimiser state are fp32 in every precision.

    stages: in order of execution.   ending: final norm and head.   table: bytes of the token table's gradient.
    """
    weights = FLOAT * total.parameters
    optimizer = optimizer_bytes(training.optimizer, total)
    # With recomputation a block saves its input only, and everything else during its own backward pass.
    whole = [stage.saved for stage in stages]
    again = [(training.recompute or stage.reversible) and len(stage.branches) > 0 and stage.stream > 0 for stage in stages]
    kept = [_kept(stage, repeated) for stage, repeated in zip(stages, again, strict=True)]
    most = max((size for size, repeated in zip(whole, again, strict=True) if repeated), default=0)
    busiest = max(_moments(stages, kept, ending, table, 0 if training.accumulate == 1 else weights))
    return Memory(weights, weights, optimizer, sum(kept) + most + ending.saved, weights + optimizer + max(busiest, weights))


def _kept(stage: Stage, repeated: bool) -> int:
    """Bytes saved until the backward pass reaches this stage."""
    if stage.reversible:
        return 0
    return stage.stream if repeated else stage.saved


def partly(whole: Memory, learned: Trained, training: Training) -> Memory:
    """Adjust ``whole`` to partial training: gradients and optimiser state of trainable parameters only, plus adapters.

    The peak is an upper bound: activations as if all parameters were trained, and all gradients at once.
    """
    weights, gradients = whole.weights + FLOAT * learned.added, FLOAT * learned.parameters
    optimizer = optimizer_bytes(training.optimizer, Share(parameters=learned.parameters, matrices=learned.matrices))
    return Memory(weights, gradients, optimizer, whole.activations, weights + gradients + optimizer + whole.activations)


def _moments(stages: Sequence[Stage], kept: list[int], ending: Stage, table: int, accumulated: int) -> list[int]:
    """Bytes besides weights and optimiser state during the backward pass, from head to embedding.

    Activations are freed as gradients are added. ``accumulated``: bytes of gradients that exist from the start.
    """
    below, (last,) = sum(kept), ending.branches
    moments = [below + last.saved + last.working + accumulated]
    # The gradient of a tied head is that of the token table.
    gradients = accumulated or max(FLOAT * last.parameters, table)
    for stage, bytes_kept in zip(reversed(stages), reversed(kept), strict=True):
        below -= bytes_kept
        if not stage.stream:
            # The embedding's gradient of the table is computed before it is added to the head's.
            moments.append(below + stage.saved + stage.beside + table + gradients)
            continue
        inside = stage.saved
        for branch in reversed(stage.branches):
            gradients += 0 if accumulated else FLOAT * branch.parameters
            moments.append(below + inside + branch.working + stage.stream + stage.beside + gradients)
            inside -= branch.saved
    return moments
