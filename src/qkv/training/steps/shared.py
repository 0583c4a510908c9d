"""Gradient of a training step by processes that hold the positions of rows together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.costs.counting.losses import SummedLoss, backward
from qkv.data.batching.batch import Batch
from qkv.models.transformer import Transformer
from qkv.parallel.context.ranks import Ranks
from qkv.parallel.context.ways import By
from qkv.parallel.exchange import sum_gradients
from qkv.parallel.mesh import device_mesh
from qkv.system.world import World
from qkv.tasks.task import Task
from qkv.training import random_state
from qkv.training.shared_rows import SharedRows, check
from qkv.training.steps.gradients import DividedGradient, part


class SharedGradient(DividedGradient):
    """Gradient by several processes with all weights. Those along the axis "context" compute parts of the same rows;
    the others divide the rows.
    """

    def __init__(self, model: Transformer, task: Task, parameters: Sequence[Tensor], world: World, by: By):
        """``by``: how attention meets the keys of other processes."""
        super().__init__(model, task, parameters, world)
        check(model)
        context = device_mesh(world, model.device.type)["context"]
        self.rows = SharedRows(Ranks(context.get_group()), by=by)

    def backward(self, loss: SummedLoss, batches: Sequence[Batch], count: int, precision: torch.autocast) -> Tensor:
        random_state.seed_process(self.rows.ranks.rank, self.model.device)
        parts = [part(batch, self.task, self.index, self.count) for batch in batches]
        shared = [self.rows.part(rows) for rows in parts if rows.input.num_rows]
        with self.rows.sharing(self.model):
            nats = backward(self.model, loss, shared, count, precision)
        sum_gradients(self.parameters)
        return nats
