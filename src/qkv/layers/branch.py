"""Base class of residual branches, with the contract for their decoding states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from qkv.layers.auxiliary_loss import with_loss
from qkv.layers.context import MEMORY, Context, Memory
from qkv.layers.layout import Declared, layouts
from qkv.layers.observable import Observable
from qkv.spec.branches import Branch as BranchSpec

State = Any
"""Decoding state of a branch: a tree of tensors with the batch axis first; see ``qkv.state``."""


class Branch(Observable, Declared):
    """Base class of residual branches, (B, N, D) -> (B, N, D). Defaults: causal and without a decoding state.

    State contract of causal branches: a sequence may be split anywhere and passed in pieces, with the state returned by
    each call passed to the next. Outputs and final state equal the results of one call. A call consumes its state and
    may overwrite its buffers. ``state=None`` processes a whole sequence and returns None as state.
    """

    causal: bool = True
    memory_name: str = MEMORY
    """Name of the memory in ``Context.memories`` that the branch reads, if it reads one."""
    rewindable: bool = True
    """True if the latest positions can be dropped by decreasing the stack's position count alone."""
    reads_pages: bool = False
    """True if the branch reads keys and values directly from the pages of a paged state; see ``qkv.state.pages``."""
    only_by_keys: bool = False
    """True if positions exchange information only by attention to keys and values, see ``KeyValueBranch.elsewhere``."""
    replayable: bool = False
    """True if a call with a state reads its positions from tensors only.

    Its kernels can then be recorded once and replayed at other positions; see ``qkv.models.fast.replayed_step``.
    """
    loss_share: float = 1.0
    """Fraction of a training step's targets that are in the current batch; factor of the branch's auxiliary loss."""

    def __init__(self, spec: BranchSpec, width: int):
        super().__init__()
        self.spec, self.width = spec, width

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        """Create an empty decoding state of ``batch`` rows.

        ``capacity``: maximum number of positions; None for no limit. For branches that read a memory, see
        ``MemoryBranch``.
        """
        return ()

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        raise NotImplementedError

    def with_loss(self, y: Tensor, loss: Tensor) -> Tensor:
        """Return the output ``y``, whose backward pass also adds the gradient of the branch's auxiliary loss.

        ``loss`` is its mean over the training batch. It is multiplied by ``loss_share`` and added to the task loss, a
        mean over targets.
        """
        return with_loss(y, self.loss_share * loss)

    def tallies(self) -> list[Tensor]:
        """Return tensors that count over the rows of a step, for ``after_step``; processes that divide the rows add
        theirs.
        """
        return []

    def after_step(self) -> None:
        """Update values that the branch adapts without the optimiser; called after each training step."""

    def state_bytes(self, length: int, batch: int = 1) -> int:
        """Return the bytes of a decoding state of ``batch`` rows of ``length`` positions, projected memory excluded."""
        return 0

    def ending(self) -> nn.Module | None:
        """Return the output projection into the residual stream, or a list of several; None if there is none.

        Its initial weights are scaled down with depth.
        """
        return None

    def idle_parameters(self, positions: int = 1) -> int:
        """Return the minimum number of parameters that a pass over ``positions`` positions does not use.

        Examples are the parameters of experts that no position selects.
        """
        return 0

    def like(self) -> Tensor:
        """Return a tensor with the device and dtype that a new decoding state gets."""
        first = next(self.parameters(), None)
        if first is not None:
            return first
        stored = next(self.buffers(), None)  # quantised weights are buffers, and their activations are in fp32
        return torch.empty(0, device=None if stored is None else stored.device)


class MemoryBranch(Branch):
    """Base class of branches that read a memory, such as an encoder's output.

    Their state is computed from the memory once and does not change.
    """

    def init_state(self, batch: int, capacity: int | None = None, memory: Memory | None = None) -> State:
        """Compute the decoding state from ``memory``, which has ``batch`` rows."""
        assert memory is not None, f"{self.spec.kind!r} reads a memory"
        return self.remember(memory)

    def remember(self, memory: Memory) -> State:
        """Compute the state from a memory, such as the memory's keys and values."""
        raise NotImplementedError

    def memory_state(self, context: Context, state: State | None) -> State:
        """Return ``state``, or if it is None, ``remember`` of the memory in ``context``."""
        return self.remember(context.memories[self.memory_name]) if state is None else state


def matrices(model: nn.Module) -> set[nn.Parameter]:
    """Return the weight matrices in the branches of ``model``, without tables, biases and norms."""
    by_name = layouts(model)
    return {p for name, p in _in_branches(model) if by_name[name].kind == "matrix"}


def linear_maps(model: nn.Module) -> list[str]:
    """Return the paths of linear layers with a ``matrix`` weight in the branches of ``model``, in model order."""
    by_name = layouts(model)
    inside = {name for name, _ in _in_branches(model)}
    maps = (
        path for path, module in model.named_modules() if isinstance(module, nn.Linear) and f"{path}.weight" in inside
    )
    return [path for path in maps if by_name[f"{path}.weight"].kind == "matrix"]


def _in_branches(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (name, parameter) of all branches; a parameter shared by branches appears under each of its names."""
    for path, branch in model.named_modules():
        if isinstance(branch, Branch):
            yield from branch.named_parameters(path, remove_duplicate=False)
