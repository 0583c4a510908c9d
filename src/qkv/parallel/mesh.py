"""Mesh: the processes of a run on named axes, and what each of them does on these axes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from qkv.spec.recipes.parallel import AXES, REST, Parallel
from qkv.system.errors import UserError
from qkv.system.world import World

ROW_AXES = ("replicate", "shard")
"""Axes along which the rows of a batch are divided."""


def sizes(parallel: Parallel, processes: int) -> dict[str, int]:
    """Return the size of each axis for a number of ``processes``, with -1 replaced.

    Raises ``UserError`` if the sizes do not multiply to that number.
    """
    axes = {name: getattr(parallel, name) for name in AXES}
    product = prod(size for size in axes.values() if size != REST)
    filled = {name: processes // product if size == REST else size for name, size in axes.items()}
    if prod(filled.values()) == processes:
        return filled
    formula = " × ".join(f"{name} {'rest' if size == REST else size}" for name, size in axes.items())
    count = f"a multiple of {product}" if REST in axes.values() else str(product)
    there = "there is 1 process" if processes == 1 else f"there are {processes} processes"
    raise UserError(
        f"parallel: {formula} needs {count} processes, but {there}; start others with --nproc, or change an axis, such "
        "as parallel.shard=1"
    )


def arrange(world: World, parallel: Parallel) -> None:
    """Set the axes of ``world`` to those of a recipe. Raises ``UserError`` if they do not fit its processes."""
    mesh = sizes(parallel, world.size)
    if world.size > 1:
        world.mesh = mesh


def place(mesh: Mapping[str, int], rank: int) -> dict[str, int]:
    """Return the index of the process ``rank`` on each axis of ``mesh``; the last axis varies fastest."""
    places = dict[str, int]()
    for name in reversed(list(mesh)):
        rank, places[name] = divmod(rank, mesh[name])
    return {name: places[name] for name in mesh}


def share(world: World) -> tuple[int, int]:
    """Return (i, n): this process computes part i of the n parts into which the rows of a batch are divided."""
    where = place(world.mesh, world.rank)
    index, count = 0, 1
    for name in ROW_AXES:
        size = world.mesh.get(name, 1)
        index, count = index * size + where.get(name, 0), count * size
    return index, count


def device_mesh(world: World, device: str) -> Any:
    """Create torch's ``DeviceMesh`` of the processes on devices of the type ``device``, with the axes of ``world``.

    All processes call it. ``mesh["context"]`` is the part of this process along that axis.
    """
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device, tuple(world.mesh.values()), mesh_dim_names=tuple(world.mesh))
