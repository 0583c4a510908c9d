"""Base class of residual branches and the state contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from qkv.layers.context import MEMORY, Context, Memory
from qkv.layers.layout import Declared, layouts
from qkv.layers.tap import receives, tapped
from qkv.spec.branches import Branch as BranchSpec

State = Any
"""Tree of tensors with the batch axis first; see ``qkv.state``."""


class Branch(Declared):
    """Base class of residual branches, (B, N, D) -> (B, N, D). The base is stateless, as position-wise branches are.

    State contract of causal branches: a sequence split anywhere and fed in pieces, with the state passed along, gives the
    outputs and the final state of one call. A call consumes its state and may overwrite its buffers. ``state=None``
    processes a whole sequence and returns None as state.
    """

    causal: bool = True
    name: str = ""
    """Path in the model, such as ``blocks.0.branches.1``."""
    memory_name: str = MEMORY
    """Name of the memory that the branch reads, if it reads one."""
    rewindable: bool = True
    """True if the latest positions can be dropped by decreasing the stack's position count alone."""

    def __init__(self, spec: BranchSpec, width: int):
        super().__init__()
        self.spec, self.width = spec, width

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        """Initial state. ``capacity``: maximum number of positions; None for no limit. See ``MemoryBranch`` for branches that
        read a memory.
        """
        return ()

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        raise NotImplementedError

    def tapped(self, context: Context, point: str, value: Tensor) -> Tensor:
        """``value`` of a point of this branch, or what the tap replaces it by."""
        return tapped(context.tap, point, f"{self.name}.{point}", value)

    def observed(self, context: Context, point: str, compute: Callable[[], Tensor]) -> None:
        """Show the tap a point that is computed for it alone."""
        if context.tap is not None and receives(context.tap, point):
            context.tap(f"{self.name}.{point}", compute())

    def state_bytes(self, length: int, batch: int = 1) -> int:
        """Bytes of the state after ``length`` positions, without the part that belongs to a memory."""
        return 0

    def ending(self) -> nn.Module | None:
        """Output projection into the residual stream, whose initial weights are scaled down with depth; None if there is none."""
        return None

    def like(self) -> Tensor:
        """A tensor with the device and dtype for a new state."""
        return next(self.parameters()) if any(True for _ in self.parameters()) else torch.empty(0)


class MemoryBranch(Branch):
    """Base class of branches that read a memory. Their state is what ``remember`` computes of it, once; it is read-only."""

    def init_state(self, batch: int, capacity: int | None = None, memory: Memory | None = None) -> State:
        """Initial state after ``memory``, which has one row for each of the batch."""
        assert memory is not None, f"{self.spec.kind!r} reads a memory"
        return self.remember(memory)

    def remember(self, memory: Memory) -> State:
        """What the branch needs of a memory, such as its keys and values."""
        raise NotImplementedError

    def known(self, context: Context, state: State | None) -> State:
        """The given state, or ``remember`` of the context's memory if there is none."""
        return self.remember(context.memories[self.memory_name]) if state is None else state


def matrices(model: nn.Module) -> set[nn.Parameter]:
    """Weight matrices of all branches of ``model``, as declared by their layouts."""
    found = layouts(model)
    return {p for name, p in _in_branches(model) if found[name].kind == "matrix"}


def linear_maps(model: nn.Module) -> list[str]:
    """Paths of the linear layers in branches of ``model`` whose weight is a matrix, in the model's order."""
    found = layouts(model)
    inside = {name for name, _ in _in_branches(model)}
    maps = (path for path, module in model.named_modules() if isinstance(module, nn.Linear) and f"{path}.weight" in inside)
    return [path for path in maps if found[f"{path}.weight"].kind == "matrix"]


def _in_branches(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """(name, parameter) of all branches; parameters that branches share have each of their names."""
    for path, branch in model.named_modules():
        if isinstance(branch, Branch):
            yield from branch.named_parameters(path, remove_duplicate=False)
