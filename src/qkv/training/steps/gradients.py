"""Gradient of a training step: of one process, or of several that divide the rows of its batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from qkv.costs.counting.losses import SummedLoss, backward
from qkv.data.batching.batch import Batch
from qkv.models.transformer import Transformer
from qkv.ops.selection.choices import table
from qkv.parallel.exchange import buckets, sum_gradients, sum_tensors
from qkv.parallel.meeting import in_contact
from qkv.parallel.mesh import share
from qkv.system.errors import UserError
from qkv.system.world import World
from qkv.tasks.task import Task
from qkv.training import random_state
from qkv.training.steps.joint import joint_backward


class StepGradient:
    """Gradient of the mean loss over the batches of a step, computed by one process."""

    def __init__(self, model: Transformer, task: Task, parameters: Sequence[Tensor]):
        """``parameters``: those that are trained."""
        self.model, self.task, self.parameters = model, task, parameters

    def compute(self, loss: SummedLoss, batches: Sequence[Batch], precision: torch.autocast) -> Tensor:
        """Add the gradient of the mean loss over the targets of all batches; return the summed loss in nats.

        loss: that of one batch.   precision: autocast context of the forward passes.
        """
        return self.backward(loss, batches, max(1, sum(batch.num_targets for batch in batches)), precision)

    def backward(self, loss: SummedLoss, batches: Sequence[Batch], count: int, precision: torch.autocast) -> Tensor:
        """Add the gradient of the loss divided by ``count``; return the loss, summed over the rows of this process."""
        if self.task.couples_rows and len(batches) > 1:
            return joint_backward(self.model, self.task, batches, count, precision)
        return backward(self.model, loss, batches, count, precision)

    def norm(self) -> Tensor:
        """Return the norm of the whole gradient."""
        return get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def gather(self) -> None:
        """Copy the weights of all processes into the whole model, where they are not there already."""

    def collectives(self, batches: int) -> dict[str, int]:
        """Return how many collectives of each kind the gradient of a step of several ``batches`` takes, by the name of
        torch's operator.
        """
        return {}


class DividedGradient(StepGradient):
    """Gradient by several processes with all weights. Each computes some rows of every batch, and the sums over all
    processes are taken once per step: those of the gradients, of the loss, and of what branches count.

    Dropout and other random numbers differ between processes: those of the first are those of a process that trains
    alone. They follow from seed, step and process.
    """

    def __init__(self, model: Transformer, task: Task, parameters: Sequence[Tensor], world: World):
        super().__init__(model, task, parameters)
        self.world, (self.index, self.count) = world, share(world)
        check(model, task)

    def compute(self, loss: SummedLoss, batches: Sequence[Batch], precision: torch.autocast) -> Tensor:
        count = max(1, sum(batch.num_targets for batch in batches))
        random_state.seed_process(self.index, self.model.device)
        with in_contact(), table().apart():
            nats = self.backward(loss, batches, count, precision)
            sum_tensors(self.model.tallies())
            return nats.new_tensor(self.world.sum([nats.item()])[0])

    def backward(self, loss: SummedLoss, batches: Sequence[Batch], count: int, precision: torch.autocast) -> Tensor:
        parts = [part(batch, self.task, self.index, self.count) for batch in batches]
        nats = backward(self.model, loss, [rows for rows in parts if rows.input.num_rows], count, precision)
        sum_gradients(self.parameters)
        return nats

    def collectives(self, batches: int) -> dict[str, int]:
        return {"allreduce_": sum(1 for _ in buckets(self.parameters))}


def part(batch: Batch, task: Task, index: int, count: int) -> Batch:
    """Return part ``index`` of ``count`` of the rows of a batch. Raises ``UserError`` if they cannot be divided."""
    rows = batch.part(index, count, task.row_extras)
    if rows is None:
        raise UserError(_undivided(task))
    return rows


def check(model: Transformer, task: Task) -> None:
    """Raise ``UserError`` if the gradients of the rows of a batch do not add up to that of the batch."""
    if not task.adds_rows:
        raise UserError(_undivided(task))
    if any(getattr(norm, "over_batch", False) for norm in model.modules()):
        raise UserError(
            "batch_norm computes with the statistics of a whole batch, whose rows several processes would divide; use "
            "layer_norm or rms_norm, or train in one process"
        )


def _undivided(task: Task) -> str:
    return (
        f"the rows of a batch of the task {task.spec.kind!r} depend on each other and are not divided among processes; "
        "train in one process"
    )
