"""Tracking of live tensor memory, operator by operator."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.costs.counting.arguments import tensors


class LiveBytes(TorchDispatchMode):
    """Dispatch mode that tracks the bytes of live storages: ``now`` and ``peak``; views share a storage, which is
    counted once.

    A storage is counted from the operator that returns it until its last tensor is freed, including tensors saved by
    autograd. Scratch memory inside an operator is not counted. ``known``: tensors that exist at the start, such as
    weights.
    """

    def __init__(self, weights: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._alive: dict[int, weakref.ref[Any]] = {}
        self.now = 0
        self.peak = 0
        for tensor in weights:
            self._meet(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._met(func(*args, **(kwargs or {})))

    def _met(self, out: Any) -> Any:
        """Count the tensors of an operator's result."""
        for tensor in tensors(out):
            self._meet(tensor)
        return out

    def _meet(self, tensor: Tensor) -> None:
        """Count the memory of a tensor, once per storage, until its last tensor is freed."""
        storage = self._storage(tensor)
        key = storage._cdata
        if key in self._alive:
            return
        size = storage.nbytes()

        def gone(_: object) -> None:
            del self._alive[key]
            self.now -= size
            self._freed(key, size)

        self._alive[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)

    def _storage(self, tensor: Tensor) -> UntypedStorage:
        return tensor.untyped_storage()

    def _freed(self, key: int, size: int) -> None:
        """Hook for subclasses, called when the last tensor of storage ``key`` is freed."""
