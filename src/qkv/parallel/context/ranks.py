"""Ranks that share the positions of a row: exchange of tensors between the processes of one group."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.system.errors import UserError

Received = Callable[[], list[Tensor]]
"""Function that waits for an exchange and returns what was received."""


_TAGS = 1 << 16
"""Number of messages after which tags repeat, which tell apart those that are under way together."""


class Ranks:
    """Processes of a group of torch.distributed, each of which holds a part of every row.

    rank, size: index of this process in the group and number of its processes.
    """

    def __init__(self, group: dist.ProcessGroup | None = None):
        """``group``: the processes; None for all. Raises ``UserError`` if there is no process group."""
        if not (dist.is_available() and dist.is_initialized()):
            raise UserError("torch.distributed has no process group; call init_process_group first")
        self.group: Any = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self._tag = 0

    def shift(self, tensors: Sequence[Tensor], by: int = 1) -> Received:
        """Send ``tensors`` to rank + ``by`` and receive those of rank - ``by``, of equal shapes; both modulo the size.

        The exchange runs while the caller computes, who must not change the tensors before waiting for it.
        """
        if by % self.size == 0:
            return lambda: list(tensors)
        tensors = [t.contiguous() for t in tensors]
        received = [torch.empty_like(t) for t in tensors]
        to, source = self._peer(self.rank + by), self._peer(self.rank - by)
        tags = range(self._tag, self._tag + len(tensors))
        self._tag = tags.stop % _TAGS
        moves = [dist.P2POp(dist.isend, t, to, self.group, tag) for t, tag in zip(tensors, tags, strict=True)]
        moves += [dist.P2POp(dist.irecv, t, source, self.group, tag) for t, tag in zip(received, tags, strict=True)]
        works = dist.batch_isend_irecv(moves)

        def wait() -> list[Tensor]:
            for work in works:
                work.wait()
            return received

        return wait

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, which have equal shapes, in order of rank."""
        gathered = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(gathered, tensor.contiguous(), group=self.group)
        return gathered

    def exchange(self, parts: Tensor) -> Tensor:
        """Send parts[i] to rank i; return what the ranks sent here, (size, …) like ``parts``. It has a gradient."""
        return _Exchange.apply(parts, self)  # type: ignore[no-any-return]

    def exchanged(self, parts: Tensor) -> Tensor:
        """Do what ``exchange`` does, without a gradient."""
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, parts.contiguous(), group=self.group)
        return received

    def send(self, tensors: Sequence[Tensor], to: int) -> None:
        """Send ``tensors`` to rank ``to``, which receives them by ``receive`` with their shapes."""
        for tensor in tensors:
            dist.send(tensor.contiguous(), self._peer(to), group=self.group)

    def receive(self, like: Sequence[Tensor], source: int, device: torch.device) -> list[Tensor]:
        """Receive tensors of the shapes and precisions of ``like`` from rank ``source`` to ``device``."""
        received = [torch.empty(t.shape, dtype=t.dtype, device=device) for t in like]
        for tensor in received:
            dist.recv(tensor, self._peer(source), group=self.group)
        return received

    def send_value(self, value: Any, to: int, device: torch.device) -> None:
        """Send a small Python value to rank ``to``, through memory of ``device``."""
        content = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(device)
        self.send((torch.tensor([content.numel()], device=device), content), to)

    def receive_value(self, source: int, device: torch.device) -> Any:
        """Receive a value that rank ``source`` sent by ``send_value``."""
        (size,) = self.receive((torch.empty(1, dtype=torch.long),), source, device)
        (content,) = self.receive((torch.empty(int(size), dtype=torch.uint8, device="meta"),), source, device)
        return pickle.loads(content.cpu().numpy().tobytes())

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the ranks, in place."""
        for tensor in tensors:
            dist.all_reduce(tensor, group=self.group)

    def _peer(self, rank: int) -> int:
        """Return the rank among all processes of rank ``rank`` of the group, modulo its size."""
        return dist.get_global_rank(self.group, rank % self.size)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.exchanged(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.exchanged(grads[0]), None
