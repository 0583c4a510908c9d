"""Gradient of a training step by processes that keep a part of the weights each."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from qkv.costs.counting.losses import SummedLoss
from qkv.data.batching.batch import Batch
from qkv.models.transformer import Transformer
from qkv.parallel.mesh import ROW_AXES, device_mesh
from qkv.parallel.shards import shard, whole
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.system.world import World
from qkv.tasks.task import Task
from qkv.training.steps.gradients import DividedGradient, part


class ShardedGradient(DividedGradient):
    """Gradient by processes of which each keeps a part of every weight, gathered for a block at a time.

    ``model``: the model that is trained, in shards.   The whole model, which is evaluated and stored, gets the weights
    by ``gather``.
    """

    def __init__(self, model: Transformer, task: Task, world: World):
        """``model``: the whole model, which stays as it is."""
        self.whole_model = model
        trained = deepcopy(model)
        axes = tuple(name for name in ROW_AXES if name == "shard" or world.mesh[name] > 1)
        mesh = device_mesh(world, model.device.type)[axes]
        self.root = shard(trained, [] if trained.reversible else trained.every_block, mesh)
        self.replicated = mesh.ndim > 1
        super().__init__(trained, task, [p for p in trained.parameters() if p.requires_grad], world)

    def backward(self, loss: SummedLoss, batches: Sequence[Batch], count: int, precision: torch.autocast) -> Tensor:
        total = torch.zeros((), device=self.model.device)
        for number, batch in enumerate(batches, 1):
            rows = part(batch, self.task, self.index, self.count)
            self.root.set_requires_gradient_sync(number == len(batches))
            self.root.set_is_last_backward(number == len(batches))
            total += self._backward(loss, rows, count, precision) if rows.input.num_rows else self._join(loss, batch)
        return total

    def _backward(self, loss: SummedLoss, rows: Batch, count: int, precision: torch.autocast) -> Tensor:
        self.model.share_losses(rows.num_targets / count)
        with precision:
            nats = self.root(partial(_of_model, loss, rows))
        (nats / count).backward()
        return nats.detach()

    def _join(self, loss: SummedLoss, batch: Batch) -> Tensor:
        """Take part in the exchanges of a batch of which this process has no row: with a row that counts nothing."""
        tallies = [tally.clone() for tally in self.model.tallies()]
        self.model.share_losses(0.0)
        nats = self.root(partial(_of_model, loss, part(batch, self.task, 0, batch.input.num_rows)))
        (0 * nats).backward()
        for tally, before in zip(self.model.tallies(), tallies, strict=True):
            tally.copy_(before)
        return torch.zeros_like(nats.detach())

    def collectives(self, batches: int) -> dict[str, int]:
        """Every unit is gathered for each forward pass, and again for each backward pass, except the root, which stays;
        the gradients of a unit are summed once.
        """
        units = sum(isinstance(module, FSDPModule) for module in self.root.modules())
        sums = {"_reduce_scatter_base_": units} | ({"allreduce_": units} if self.replicated else {})
        return {"_allgather_base_": batches * (2 * units - 1), **sums}

    @torch.no_grad()
    def gather(self) -> None:
        for target, source in zip(_tensors(self.whole_model), _tensors(self.model), strict=True):
            target.copy_(whole(source))


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _of_model(loss: SummedLoss, batch: Batch, model: Transformer) -> Tensor:
    return loss(model, batch)


def check_shards(recipe: Recipe) -> None:
    """Raise ``UserError`` if the recipe has a setting that weights in shards do not support."""
    training = recipe.training
    unsupported = {
        "training.compile": training.compile,
        "training.spikes=rollback": training.spikes == "rollback",
        "quantized": recipe.quantized is not None,
    }
    for name, present in unsupported.items():
        if present:
            raise UserError(f"{name} needs all weights in each process; leave it out, or set parallel.shard=1")
