"""Block: residual branches and norms in one of four orders.

pre         x ─┬─ norm ─ f ─┐         post      x ─┬─ f ─┐
               └─────────── + ─          (then)    └──── + ─ norm ─

sandwich    x ─┬─ norm ─ f ─ norm ─┐  parallel  x ─┬─ norm ─┬─ f ─┐
               └────────────────── + ─             │        └─ g ─┤
                                                   └───────────── + ─

With a list of norms, parallel branches have separate norms before f and g.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.norms import build_norm
from qkv.layers.residuals import build_residual
from qkv.layers.tap import tapped
from qkv.mixers.registry import build_branch
from qkv.spec.model import Block as BlockSpec


class Slot(nn.Module):
    """Branch ``j`` of a block: the branch f with its norms and residual connection."""

    def __init__(self, block: BlockSpec, j: int, width: int, name: str, memory_width: int | None = None):
        super().__init__()
        self.name = name
        self.body: Branch = build_branch(block.branches[j], width, memory_width)
        self.body.name = name
        self.residual = build_residual(block.residual_of(j), width, block.dropout, block.drop_path)

    def computed(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        """Return (f(x), next state); the tap, if any, may replace f(x)."""
        y, state = self.body(x, context, state)
        return tapped(context.tap, "output", self.name, y), state


class PreNorm(Slot):
    """Pre-norm: x + f(norm x). With two reversible streams, f reads one stream and is added to the other."""

    def __init__(self, block: BlockSpec, j: int, width: int, name: str, memory_width: int | None = None):
        super().__init__(block, j, width, name, memory_width)
        self.norm = build_norm(block.norm_of(j), width)

    def added(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        """Return (f(norm x), next state): the term that is added to x."""
        return self.computed(self.norm(x, context), context, state)

    def forward(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        y, state = self.added(self.residual.read(x), context, state)
        return self.residual(x, y), state


class PostNorm(PreNorm):
    """Post-norm: norm(x + f(x))."""

    def forward(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        y, state = self.computed(x, context, state)
        return self.norm(self.residual(x, y), context), state


class Sandwich(PreNorm):
    """Sandwich norm: x + norm_after(f(norm x))."""

    def __init__(self, block: BlockSpec, j: int, width: int, name: str, memory_width: int | None = None):
        super().__init__(block, j, width, name, memory_width)
        self.norm_after = build_norm(block.norm_of(j), width)

    def added(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        """Return (norm_after(f(norm x)), next state): the term that is added to x."""
        y, state = self.computed(self.norm(x, context), context, state)
        return self.norm_after(y, context), state


class Parallel(Slot):
    """Parallel branch: one of several with the same input x, normalised once by ``Block``, or by each branch's norm."""

    def __init__(self, block: BlockSpec, j: int, width: int, name: str, memory_width: int | None = None):
        super().__init__(block, j, width, name, memory_width)
        self.norm = build_norm(block.norms[j], width) if block.norms else None

    def forward(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        return self.computed(x if self.norm is None else self.norm(x, context), context, state)


ORDERS: dict[str, type[Slot]] = {"pre": PreNorm, "post": PostNorm, "sandwich": Sandwich, "parallel": Parallel}


class Block(nn.Module):
    """Block of residual branches, x (B, N, D) -> (B, N, D); its state is a tuple with one entry per branch."""

    def __init__(self, spec: BlockSpec, width: int, name: str, memory_width: int | None = None):
        super().__init__()
        self.spec = spec
        order = ORDERS[spec.order]
        slots = (order(spec, j, width, f"{name}.branches.{j}", memory_width) for j in range(len(spec.branches)))
        self.branches = nn.ModuleList(slots)
        self.norm = build_norm(spec.norm, width) if order is Parallel and not spec.norms else None

    def forward(
        self, x: Tensor, context: Context, state: tuple[State, ...] | None = None
    ) -> tuple[Tensor, tuple[State, ...] | None]:
        after: list[Any] = []
        if self.spec.order != "parallel":
            for j, branch in enumerate(self.branches):
                x = _stream(branch, "before", x, context)
                x, s = branch(x, context, None if state is None else state[j])
                x = _stream(branch, "after", x, context)
                after.append(s)
            return x, None if state is None else tuple(after)
        shared = x if self.norm is None else self.norm(x, context)
        for j, branch in enumerate(self.branches):
            x = _stream(branch, "before", x, context)
            y, s = branch(shared, context, None if state is None else state[j])
            x = _stream(branch, "after", branch.residual(x, y), context)  # type: ignore[operator]
            after.append(s)
        return x, None if state is None else tuple(after)


def _stream(branch: nn.Module, point: str, x: Tensor, context: Context) -> Tensor:
    """Pass residual stream x at ``point``, "before" or "after" a branch, to the tap; return the tap's output, or x."""
    return x if context.tap is None else tapped(context.tap, point, f"{branch.name}.{point}", x)
