"""World: the processes that train one run together.

A decision must not depend on values that differ between processes: clocks, timings, files, signals. Processes would
decide differently, and one would wait for ever in a collective call that the others do not make. Such a value goes
through ``agree``, ``lead`` or ``sum``, which all processes call in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from qkv.system.errors import UserError

T = TypeVar("T")


class World:
    """World of a single process; ``ProcessGroupWorld`` is the world of several processes.

    rank, size: index of this process and number of processes.   mesh: sizes of the axes along which processes share
    work, by name; their product is ``size``.
    """

    rank: int = 0
    size: int = 1
    mesh: Mapping[str, int] = {}

    @property
    def first(self) -> bool:
        """True in the process of rank 0, the only one that writes files."""
        return self.rank == 0

    def agree(self, value: T) -> T:
        """Broadcast ``value`` from the first process; return it in all processes."""
        return value

    def lead(self, work: Callable[[], T]) -> T:
        """Wait for all processes, call ``work`` in the first one, and return its result in all.

        For work with files. ``work`` must not call methods that communicate. If it raises ``UserError``, all raise it.
        """
        return work()

    def sum(self, values: Sequence[float]) -> Sequence[float]:
        """Return the sums of ``values`` over all processes, element by element; exact for integers up to 2^53."""
        return values

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of their ranks."""
        return [value]

    def barrier(self) -> None:
        """Wait until all processes have made this call."""


ALONE = World()
"""World of a process that trains alone."""


class ProcessGroupWorld(World):
    """World of the processes of torch.distributed's default process group.

    Values are exchanged through a separate gloo group, on the CPU, so that no exchange waits for a GPU or interferes
    with the collectives of training.
    """

    def __init__(self, mesh: Mapping[str, int] | None = None, timeout: float | None = None):
        """``mesh``: sizes of the axes by name; None for one axis "replicate" of all processes.   ``timeout``: seconds
        after which an exchange fails that not all processes make; None for torch's default.

        Raises ``UserError`` if there is no process group, or if the sizes do not multiply to the number of processes.
        """
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise UserError("torch.distributed has no process group; call init_process_group first")
        self._distributed: Any = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.mesh = {"replicate": self.size} if mesh is None else dict(mesh)
        if math.prod(self.mesh.values()) != self.size:
            raise UserError(
                f"mesh: {self.mesh} is for {math.prod(self.mesh.values())} processes, but there are {self.size}"
            )
        limit = None if timeout is None else timedelta(seconds=timeout)
        self._group = dist.new_group(backend="gloo", timeout=limit)

    def agree(self, value: T) -> T:
        """Broadcast ``value`` from the first process, by pickle; return it in all processes."""
        box = [value if self.first else None]
        self._distributed.broadcast_object_list(box, src=0, group=self._group)
        return box[0]  # type: ignore[return-value]

    def lead(self, work: Callable[[], T]) -> T:
        """Wait for all processes, call ``work`` in the first one, and return its result in all."""
        self.barrier()
        if not self.first:
            result, sentence = self.agree((None, ""))
            if sentence:
                raise UserError(sentence)
            return result  # type: ignore[return-value]
        try:
            result = work()
        except UserError as error:
            self.agree((None, str(error)))
            raise
        return self.agree((result, ""))[0]

    def sum(self, values: Sequence[float]) -> Sequence[float]:
        """Return the sums of ``values`` over all processes, element by element."""
        import torch

        total = torch.tensor(values, dtype=torch.float64)
        self._distributed.all_reduce(total, group=self._group)
        return total.tolist()  # type: ignore[no-any-return]

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes by pickle, in the order of their ranks."""
        values: list[Any] = [None] * self.size
        self._distributed.all_gather_object(values, value, group=self._group)
        return values

    def barrier(self) -> None:
        """Wait until all processes have made this call."""
        self._distributed.barrier(group=self._group)
