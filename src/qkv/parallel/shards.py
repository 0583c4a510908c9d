"""Shards: each process keeps a part of every weight, of its gradient and of the optimiser's state (FSDP2).

A module's weights are gathered before its forward and backward pass, and dropped after them; gradients are summed over
the processes, each of which keeps the sum of its part (Zhao et al. 2023, Rajbhandari et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn


def whole(tensor: Tensor) -> Tensor:
    """Return all values of a tensor, gathered from all processes if it is in shards; all of them make this call."""
    gather: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return the shard of ``tensor``, which holds all values, that this process has of ``other``; the tensor itself if
    ``other`` is not in shards.
    """
    if not hasattr(other, "full_tensor"):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(other, DTensor)
    return distribute_tensor(tensor, other.device_mesh, other.placements, src_data_rank=None)


class Sharded(nn.Module):
    """Root of a model in shards: its forward pass calls a function of the model, with all weights outside of the
    blocks gathered.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[nn.Module], Tensor]) -> Tensor:
        return compute(self.model)


def shard(model: nn.Module, blocks: Iterable[nn.Module], mesh: Any) -> Any:
    """Put the weights of ``model`` into shards, in place: each of ``blocks`` is a unit that is gathered at once, and
    all other weights are one more. Return the root, an ``FSDPModule`` around the model.

    mesh: torch's device mesh, (shard) or (replicate, shard).   Gradients are sums over all processes.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard

    for block in apart(blocks):
        fully_shard(block, mesh=mesh)
    sharded = Sharded(model)
    root = fully_shard(sharded, mesh=mesh)
    for module in sharded.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    root.set_reduce_scatter_unused_params(True)
    return root


def apart(blocks: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the blocks, or none if two of them share a parameter, which then belongs to the root."""
    several = list(blocks)
    parameters = [id(p) for block in several for p in block.parameters()]
    return several if len(set(parameters)) == len(parameters) else []
