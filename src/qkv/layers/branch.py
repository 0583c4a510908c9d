"""Base class of residual branches and the state contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from qkv.layers.auxiliary_loss import with_loss
from qkv.layers.context import MEMORY, Context, Memory
from qkv.layers.layout import Declared, layouts
from qkv.layers.tap import receives, tapped
from qkv.spec.branches import Branch as BranchSpec

State = Any
"""Tree of tensors with the batch axis first; see ``qkv.state``."""


class Branch(Declared):
    """Base class of residual branches, (B, N, D) -> (B, N, D); without a decoding state, as position-wise branches are.

    State contract of causal branches: a sequence split anywhere and fed in pieces, with the state passed along, gives
    the outputs and the final state of one call. A call consumes its state and may overwrite its buffers.
    ``state=None`` processes a whole sequence and returns None as state.
    """

    causal: bool = True
    name: str = ""
    """Path in the model, such as ``blocks.0.branches.1``."""
    memory_name: str = MEMORY
    """Name of the memory that the branch reads, if it reads one."""
    rewindable: bool = True
    """True if the latest positions can be dropped by decreasing the stack's position count alone."""
    reads_pages: bool = False
    """True if keys and values that are stored in pages are read where they are; see ``qkv.state.pages``."""
    replayable: bool = False
    """True if a call with a state finds its positions in tensors alone, so that its kernels can be recorded and
    replayed at others; see ``qkv.models.replayed_step``."""
    loss_share: float = 1.0
    """Share of the batch in the targets of a training step, by which a loss of the branch itself is multiplied."""

    def __init__(self, spec: BranchSpec, width: int):
        super().__init__()
        self.spec, self.width = spec, width

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        """Empty decoding state of ``batch`` rows. ``capacity``: maximum number of positions; None for no limit.

        For branches that read a memory, see ``MemoryBranch``.
        """
        return ()

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        raise NotImplementedError

    def tapped(self, context: Context, point: str, value: Tensor) -> Tensor:
        """``value`` at a point of this branch, or its replacement if the context has a tap that gives one."""
        return tapped(context.tap, point, f"{self.name}.{point}", value)

    def observed(self, context: Context, point: str, compute: Callable[[], Tensor]) -> None:
        """Pass the tap a value that only taps need: ``compute()`` is called only if a tap receives ``point``."""
        if context.tap is not None and receives(context.tap, point):
            context.tap(f"{self.name}.{point}", compute())

    def with_loss(self, y: Tensor, loss: Tensor) -> Tensor:
        """Output ``y`` of a training batch, whose backward pass adds the gradient of ``loss``, the branch's own.

        ``loss`` is a mean over the batch, and is added to the task's mean over its targets.
        """
        return with_loss(y, self.loss_share * loss)

    def after_step(self) -> None:
        """Called after each training step, for what a branch adapts to the batches of a step; most adapt nothing."""

    def state_bytes(self, length: int, batch: int = 1) -> int:
        """Bytes of the decoding state of ``batch`` rows after ``length`` positions, without the part from a memory."""
        return 0

    def ending(self) -> nn.Module | None:
        """Output projection into the residual stream, or a list of several; None if there is none.

        Initial weights are scaled down with depth.
        """
        return None

    def idle_parameters(self, positions: int = 1) -> int:
        """Number of parameters that ``positions`` positions certainly leave unused, as a mixture of experts does."""
        return 0

    def like(self) -> Tensor:
        """Tensor whose device and dtype a new state takes."""
        found = next(self.parameters(), None)
        if found is not None:
            return found
        stored = next(self.buffers(), None)  # of quantised weights, whose activations are in fp32
        return torch.empty(0, device=None if stored is None else stored.device)


class MemoryBranch(Branch):
    """Base class of branches that read a memory, such as an encoder's output.

    The state is computed of it once and not changed.
    """

    def init_state(self, batch: int, capacity: int | None = None, memory: Memory | None = None) -> State:
        """Decoding state computed from ``memory``, which has ``batch`` rows."""
        assert memory is not None, f"{self.spec.kind!r} reads a memory"
        return self.remember(memory)

    def remember(self, memory: Memory) -> State:
        """Compute from a memory what every call needs, such as its keys and values."""
        raise NotImplementedError

    def known(self, context: Context, state: State | None) -> State:
        """``state``, or without one what ``remember`` computes from the memory in ``context``."""
        return self.remember(context.memories[self.memory_name]) if state is None else state


def matrices(model: nn.Module) -> set[nn.Parameter]:
    """Weight matrices in the branches of ``model``; tables, biases and norms are not among them."""
    found = layouts(model)
    return {p for name, p in _in_branches(model) if found[name].kind == "matrix"}


def linear_maps(model: nn.Module) -> list[str]:
    """Paths of the linear layers in branches of ``model`` whose weight is a matrix, in the model's order."""
    found = layouts(model)
    inside = {name for name, _ in _in_branches(model)}
    maps = (
        path for path, module in model.named_modules() if isinstance(module, nn.Linear) and f"{path}.weight" in inside
    )
    return [path for path in maps if found[f"{path}.weight"].kind == "matrix"]


def _in_branches(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (name, parameter) of all branches; a parameter shared by branches appears under each of its names."""
    for path, branch in model.named_modules():
        if isinstance(branch, Branch):
            yield from branch.named_parameters(path, remove_duplicate=False)
