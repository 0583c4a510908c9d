"""How much memory a training step takes, from the shares of its parts. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch

from qkv.inspection.shares import FLOAT, Share
from qkv.spec.errors import UserError
from qkv.spec.training import AdamW, Muon, Optimizer, Training


@dataclass(frozen=True)
class Memory:
    """Bytes of a training step. ``activations``: kept from the forward to the backward pass. ``peak``: the most at any moment."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int


@dataclass(frozen=True)
class Stages:
    """The shares of a model in the order of the data's way; of each block, those of its branches with what stands around them.

    stream: bytes of the vectors between two blocks.   table: bytes of the token table's gradient.
    """

    embedding: Share
    blocks: Sequence[Sequence[Share]]
    ending: Share
    stream: int
    table: int


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


def training_memory(stages: Stages, total: Share, training: Training) -> Memory:
    """Weights, gradients and optimiser are fp32 in every precision."""
    weights = FLOAT * total.parameters
    optimizer = optimizer_bytes(training.optimizer, total)
    # With recomputation a block keeps its input alone, and all else again while its own backward pass runs.
    whole = [sum(branch.saved for branch in block) for block in stages.blocks]
    kept = [stages.stream] * len(whole) if training.recompute else whole
    again = max(whole) if training.recompute else 0
    activations = stages.embedding.saved + sum(kept) + again + stages.ending.saved
    busiest = max(_moments(stages, kept, 0 if training.accumulate == 1 else weights))
    return Memory(weights, weights, optimizer, activations, weights + optimizer + max(busiest, weights))


def _moments(stages: Stages, kept: list[int], accumulated: int) -> list[int]:
    """Bytes beside weights and optimiser, going backward from head to embedding: activations go as gradients come.

    ``accumulated``: bytes of gradients that are there from the start.
    """
    below = stages.embedding.saved + sum(kept)
    moments = [below + stages.ending.saved + stages.ending.working + accumulated]
    # A tied head leaves its gradient in the token table's.
    gradients = accumulated or max(FLOAT * stages.ending.parameters, stages.table)
    for block, bytes_kept in zip(reversed(stages.blocks), reversed(kept), strict=True):
        below -= bytes_kept
        inside = sum(branch.saved for branch in block)
        for branch in reversed(block):
            gradients += 0 if accumulated else FLOAT * branch.parameters
            moments.append(below + inside + branch.working + stages.stream + gradients)
            inside -= branch.saved
    # The table's gradient from below is whole before it is added to the one from the head.
    moments.append(below + stages.stream + stages.table + gradients)
    return moments
