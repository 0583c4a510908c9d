"""The one block: a list of residual branches and an order.

pre         x ─┬─ norm ─ f ─┐         post      x ─┬─ f ─┐
               └─────────── + ─          (then)    └──── + ─ norm ─

sandwich    x ─┬─ norm ─ f ─ norm ─┐  parallel  x ─┬─ norm ─┬─ f ─┐
               └────────────────── + ─             │        └─ g ─┤
                                                   └───────────── + ─
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context, MemoryWeights
from qkv.layers.norms import build_norm
from qkv.layers.residuals import build_residual
from qkv.mixers.registry import build_branch
from qkv.spec import branches as branch_spec
from qkv.spec.model import Block as BlockSpec


class Slot(nn.Module):
    """One branch with what its order puts around it."""

    def __init__(self, block: BlockSpec, part: branch_spec.Branch, width: int, name: str):
        super().__init__()
        self.name = name
        self.body: Branch = build_branch(part, width)
        self.residual = build_residual(block.residual, width, block.dropout, block.drop_path)

    def computed(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        """f(x), seen by the tap."""
        if isinstance(context.tap, MemoryWeights):
            weights = self.body.memory_weights(x, context, state)
            if weights is not None:
                context.tap(f"{self.name}.weights", weights)
        y, state = self.body(x, context, state)
        if context.tap is not None:
            y = _tapped(context, self.name, y)
        return y, state


class PreNorm(Slot):
    """x + f(norm x)."""

    def __init__(self, block: BlockSpec, part: branch_spec.Branch, width: int, name: str):
        super().__init__(block, part, width, name)
        self.norm = build_norm(block.norm, width)

    def forward(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        y, state = self.computed(self.norm(x, context), context, state)
        return self.residual(x, y), state


class PostNorm(PreNorm):
    """norm(x + f(x))."""

    def forward(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        y, state = self.computed(x, context, state)
        return self.norm(self.residual(x, y), context), state


class Sandwich(PreNorm):
    """x + norm_after(f(norm x))."""

    def __init__(self, block: BlockSpec, part: branch_spec.Branch, width: int, name: str):
        super().__init__(block, part, width, name)
        self.norm_after = build_norm(block.norm, width)

    def forward(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        y, state = self.computed(self.norm(x, context), context, state)
        return self.residual(x, self.norm_after(y, context)), state


class Parallel(Slot):
    """One of several branches that read the same norm of x; ``Block`` holds the norm."""

    def forward(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        return self.computed(x, context, state)


ORDERS: dict[str, type[Slot]] = {"pre": PreNorm, "post": PostNorm, "sandwich": Sandwich, "parallel": Parallel}


class Block(nn.Module):
    """x (B, N, D) -> (B, N, D); the state is a tuple, one entry a branch."""

    def __init__(self, spec: BlockSpec, width: int, name: str):
        super().__init__()
        self.spec = spec
        order = ORDERS[spec.order]
        self.branches = nn.ModuleList(order(spec, part, width, f"{name}.branches.{j}") for j, part in enumerate(spec.branches))
        self.norm = build_norm(spec.norm, width) if order is Parallel else None

    def forward(self, x: Tensor, context: Context, state: tuple[State, ...] | None = None) -> tuple[Tensor, tuple[State, ...] | None]:
        after: list[Any] = []
        if self.norm is None:
            for j, branch in enumerate(self.branches):
                x, s = branch(x, context, None if state is None else state[j])
                after.append(s)
            return x, None if state is None else tuple(after)
        shared = self.norm(x, context)
        for j, branch in enumerate(self.branches):
            y, s = branch(shared, context, None if state is None else state[j])
            x = branch.residual(x, y)  # type: ignore[operator]
            after.append(s)
        return x, None if state is None else tuple(after)


def _tapped(context: Context, name: str, y: Tensor) -> Tensor:
    assert context.tap is not None
    replaced = context.tap(name, y)
    return y if replaced is None else replaced
