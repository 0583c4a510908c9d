"""Diagnosis of non-finite values: find the first module of a model that produces them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.layers.observable import list_points
from qkv.layers.tap import Location, Tap
from qkv.models.transformer import Transformer
from qkv.ops.linear.precision import autocast, runs_in
from qkv.tasks.task import Task


@dataclass(frozen=True)
class Illness:
    """Diagnosis of a non-finite loss or gradient. ``where``: path of the first module with NaN or infinity; ``what``:
    description; ``remedy``: suggested fix.
    """

    where: str
    what: str
    remedy: str


def diagnose(model: Transformer, task: Task, batches: Sequence[Batch], number_format: str) -> Illness:
    """Find the first module of ``model`` that produces NaN or infinity on ``batches``, in order of computation.

    The weights are checked first, then the outputs of branches, the loss, and the gradients. Gradients flow backwards,
    so their origin is the last non-finite parameter. The gradients must be those of the failed step, and the random
    state must be restored to the beginning of that step. ``number_format``: precision of training, "fp32" or "bf16".
    """
    broken = next((name for name, p in model.named_parameters() if not _finite(p)), None)
    if broken:
        return Illness(
            broken, "holds weights that are not finite", "the last update was too large: lower the learning rate"
        )
    gradients = [name for name, p in model.named_parameters() if p.grad is not None and not _finite(p.grad)]
    path = _first_output(model, task, batches, number_format)
    if path:
        rounded = runs_in(number_format, model.device) == "bf16"
        remedy = (
            "train in fp32, or lower the learning rate"
            if rounded
            else "lower the learning rate, or lengthen the warm-up"
        )
        return Illness(path, "was the first to produce values that are not finite", remedy)
    if gradients:
        return Illness(
            gradients[-1],
            "was the first whose gradient is not finite",
            "lower the learning rate, or set training.clip_norm",
        )
    return Illness(
        "the gradient norm",
        "overflowed although every gradient is finite",
        "lower the learning rate, or set training.clip_norm",
    )


def _first_output(model: Transformer, task: Task, batches: Sequence[Batch], number_format: str) -> str:
    """Return the path of the first module with a non-finite output, among front end, branches, norm, head and loss; ""
    if all outputs are finite.
    """
    first = _FirstBad(model)
    with torch.no_grad():
        for batch in batches:
            with autocast(number_format, model.device):
                loss = task.summed_loss(model, batch, first)
            first.at(Location(0, "loss", "output"), loss)
    return first.path


class _FirstBad(Tap):
    """Tap that records the path of the first module with a non-finite output."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(*(path for path in list_points(model) if path.endswith(".output")))
        self.path = ""

    def at(self, location: Location, value: Tensor) -> None:
        if not self.path and not _finite(value):
            self.path = location.module


def _finite(x: Tensor) -> bool:
    return bool(x.isfinite().all())
