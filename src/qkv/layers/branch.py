"""Base class of the branches of a block: a module with the one state contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from qkv.layers.context import Context, Memory
from qkv.layers.table import Table
from qkv.spec.branches import Branch as BranchSpec

State = Any
"""A tree of tensors, batch axis first; see ``qkv.state``."""


class Branch(nn.Module):
    """Maps (B, N, D) to (B, N, D). This base remembers nothing, as a position-wise branch does.

    The contract, for causal branches: cut a sequence anywhere, pass the state along, and outputs and final state are
    those of one call. A call consumes its state: it may write into its buffers. ``state=None`` is the whole sequence at
    once and returns None as state.
    """

    causal: bool = True
    rewindable: bool = True
    """True if the stack may forget the latest positions by lowering its count alone."""

    def __init__(self, spec: BranchSpec, width: int):
        super().__init__()
        self.spec, self.width = spec, width

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        """The state before the first position. ``capacity``: the most positions it must hold; None for no limit."""
        return ()

    def remember(self, memory: Memory) -> State:
        """The state before the first position of a branch that reads a memory: all that it needs of it, computed once."""
        raise NotImplementedError

    def known(self, context: Context, state: State | None) -> State:
        """What ``remember`` says of the memory: the state, or without one what is computed now."""
        if state is not None:
            return state
        assert context.memory is not None
        return self.remember(context.memory)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        raise NotImplementedError

    def memory_weights(self, x: Tensor, context: Context, state: State | None = None) -> Tensor | None:
        """The share of each of the M vectors of the memory in what a position reads, (B, H, N, M); None if there are no such shares."""
        return None

    def state_bytes(self, length: int, batch: int = 1) -> int:
        """Bytes of the state that must be kept after ``length`` positions, without what is kept of a memory."""
        return 0

    def ending(self) -> nn.Module | None:
        """The linear map whose output joins the residual stream; its initial weights are scaled down with depth."""
        return None

    def like(self) -> Tensor:
        """A tensor with the device and precision that a new state takes."""
        return next(self.parameters()) if any(True for _ in self.parameters()) else torch.empty(0)


def matrices(model: nn.Module) -> set[nn.Parameter]:
    """The linear maps inside the branches of ``model``, in whichever stack: parameters of two axes that are no table."""
    parts = (part for branch in model.modules() if isinstance(branch, Branch) for part in branch.modules())
    maps = (part for part in parts if not isinstance(part, (Table, nn.Embedding, nn.EmbeddingBag)))
    return {p for part in maps for p in part.parameters(recurse=False) if p.ndim == 2}


BRANCHES: dict[type[BranchSpec], type[Branch]] = {}
"""Every part that a block can list, by the type of its spec."""

B = TypeVar("B", bound=type[Branch])


def implements(spec: type[BranchSpec]) -> Callable[[B], B]:
    """``@implements(spec.GRU)`` makes the class the module of that spec, and puts it under the contract tests."""

    def register(module: B) -> B:
        BRANCHES[spec] = module
        return module

    return register
