"""Stands for a CUDA graph on a processor: records operators with their tensors, and repeats them on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qkv.models.fast import replayed_step

_READ = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "lift_fresh"}
"""Operators that read values of a tensor on the host or make a tensor of them, or whose results have as many numbers as
the values say.
"""


class Operators(TorchDispatchMode):
    """Dispatch mode that lists the operators of a call with arguments and results, whose memory it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    @property
    def on_the_host(self) -> list[str]:
        """Operators that cannot be recorded on an accelerator: they wait for it, or give it numbers of the host."""
        named = [(func.overloadpacket.__name__, args, kwargs) for func, args, kwargs, _ in self.calls]
        return [name for name, args, kwargs in named if name in _READ or _by_mask(name, args, kwargs)]

    @property
    def devices(self) -> set[str]:
        """Types of the devices of all tensors."""
        leaves = tree_leaves([(args, kwargs, out) for _, args, kwargs, out in self.calls])
        return {leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)}

    def described(self) -> list[tuple[Any, ...]]:
        """Operator, numbers, shapes, and for each tensor the call that made it, or its address if none did."""
        made: dict[int, int] = {}
        found = []
        for i, (func, args, kwargs, out) in enumerate(self.calls):
            found.append((str(func), *(_described(leaf, made) for leaf in tree_leaves((args, kwargs)))))
            for leaf in tree_leaves(out):
                if isinstance(leaf, Tensor) and not _addresses(args, kwargs) & {_address(leaf)}:
                    made.setdefault(_address(leaf), i)
        return found


def _by_mask(name: str, args: Any, kwargs: Any) -> bool:
    """True for an index operator that selects by booleans, whose number is counted on the host."""
    leaves = [leaf for leaf in tree_leaves((args[1:2], kwargs)) if isinstance(leaf, Tensor)]
    return name.startswith("index") and any(leaf.dtype == torch.bool for leaf in leaves)


def _address(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _addresses(*trees: Any) -> set[int]:
    return {_address(leaf) for leaf in tree_leaves(trees) if isinstance(leaf, Tensor)}


def _described(leaf: Any, made: dict[int, int]) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    origin = made.get(_address(leaf), ("memory", leaf.data_ptr()))
    return origin, tuple(leaf.shape), leaf.stride(), leaf.storage_offset(), leaf.dtype


class Recording:
    """Operators of ``run``, repeated by ``replay`` with the same numbers on the same tensors, as a CUDA graph does."""

    made: ClassVar[list[Recording]] = []

    def __init__(self, run: Callable[[], Tensor], device: torch.device):
        run()  # as in front of a graph's capture
        with Operators() as self.operators:
            self.output = run()
        self.replays = 0
        self.made.append(self)

    @torch.inference_mode()
    def replay(self) -> Tensor:
        self.replays += 1
        for func, args, kwargs, out in self.operators.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and _address(old) != _address(new):
                    old.copy_(new)
        return self.output


class StandIn:
    """Stands for what torch has of CUDA graphs only with a GPU. done: what was asked of it.   current: stream."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.done, self.current = list[str](), "now"
        patch.setattr(replayed_step, "_stream", lambda device: _Stream(self, "aside"))
        patch.setattr(torch.cuda, "current_stream", lambda device: _Stream(self, self.current))
        patch.setattr(torch.cuda, "stream", self._on)
        patch.setattr(torch.cuda, "graph", self._recording)
        patch.setattr(torch.cuda, "CUDAGraph", lambda: self)

    def replay(self) -> None:
        self.done.append("replay")

    @contextmanager
    def _on(self, stream: _Stream) -> Iterator[None]:
        before, self.current = self.current, stream.name
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def _recording(self, graph: StandIn, stream: _Stream, capture_error_mode: str) -> Iterator[None]:
        """As in torch, whose stream stays the current one where what is recorded raises."""
        assert graph is self
        self.done.append(f"record, {capture_error_mode}")
        before, self.current = self.current, stream.name
        yield
        self.current = before


class _Stream:
    def __init__(self, cuda: StandIn, name: str):
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: _Stream) -> None:
        self.cuda.done.append(f"{self.name} waits for {other.name}")
