"""Block: residual branches and norms in one of five orders.

pre         x ─┬─ norm ─ f ─┐         post      x ─┬─ f ─┐
               └─────────── + ─          (then)    └──── + ─ norm ─

sandwich    x ─┬─ norm ─ f ─ norm ─┐  parallel  x ─┬─ norm ─┬─ f ─┐
               └────────────────── + ─             │        └─ g ─┤
                                                   └───────────── + ─
res_post    x ─┬─ f ─ norm ─┐
               └─────────── + ─

With a list of norms, parallel branches have separate norms before f and g.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.norms import Norm, build_norm
from qkv.layers.observable import Observable, Points, standard
from qkv.layers.residuals import build_residual
from qkv.mixers.registry import build_branch
from qkv.models.stack.merges import build_merge
from qkv.spec.model import Block as BlockSpec
from qkv.spec.parts import NoNorm
from qkv.spec.parts import Norm as NormSpec


class Slot(Observable, nn.Module):
    """Branch ``j`` of a block: the branch f with its norms and residual connection."""

    norms_output = False
    """True if ``norm`` reads the output of the branch, before it is added to the stream."""
    relay: Callable[[Branch, Tensor, Context], Tensor] | None = None
    """Call of the branch on rows of which this process holds a part (``qkv.parallel.context``); None for whole rows."""

    def __init__(self, block: BlockSpec, j: int, width: int, name: str, memory_width: int | None = None):
        super().__init__()
        self.assign_name(name)
        self.body: Branch = build_branch(block.branches[j], width, memory_width)
        self.body.assign_name(name)
        self.residual = build_residual(block.residual_of(j), width, block.dropout, block.drop_path)
        self.factor = block.factors[j] if block.factors else 1.0

    def points(self) -> Points:
        return {
            **standard("residual_before", "input"),
            **self.body.points(),
            **standard("output", "residual_after"),
        }

    def computed(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        """Return (f(x), next state), f with the branch's constant factor; the tap, if any, may replace x and f(x)."""
        if self.relay is not None:
            y = self.relay(self.body, x, context)
        else:
            y, state = self.body(self.offer(context.tap, "input", x), context, state)
        y = y if self.factor == 1 else self.factor * y
        return self.offer(context.tap, "output", y), state


class PreNorm(Slot):
    """Pre-norm: x + f(norm x). With two reversible streams, f reads one stream and is added to the other."""

    def __init__(self, block: BlockSpec, j: int, width: int, name: str, memory_width: int | None = None):
        super().__init__(block, j, width, name, memory_width)
        self.norm = _norm(block.norm_of(j), width, f"{name}.norm")

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
        self.norm_after = _norm(block.norm_of(j), width, f"{name}.norm_after")

    def added(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        """Return (norm_after(f(norm x)), next state): the term that is added to x."""
        y, state = self.computed(self.norm(x, context), context, state)
        return self.norm_after(y, context), state


class ResidualPostNorm(PreNorm):
    """Norm of the branch's output: x + norm(f(x))."""

    norms_output = True

    def added(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        """Return (norm(f(x)), next state): the term that is added to x."""
        y, state = self.computed(x, context, state)
        return self.norm(y, context), state


class Parallel(Slot):
    """Parallel branch: all branches of a block read the same x, after one norm in ``Block`` or a norm per branch."""

    def __init__(self, block: BlockSpec, j: int, width: int, name: str, memory_width: int | None = None):
        super().__init__(block, j, width, name, memory_width)
        self.norm = _norm(block.norms[j], width, f"{name}.norm") if block.norms else None

    def forward(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, State | None]:
        return self.computed(x if self.norm is None else self.norm(x, context), context, state)


ORDERS: dict[str, type[Slot]] = {
    "pre": PreNorm,
    "post": PostNorm,
    "sandwich": Sandwich,
    "res_post": ResidualPostNorm,
    "parallel": Parallel,
}


class Block(nn.Module):
    """Block of residual branches, x (B, N, D) -> (B, N, D); its state is a tuple with one entry per branch.

    With a merge: x (B, N, D) on a grid -> (B, M, E) on a coarser grid.
    """

    def __init__(self, spec: BlockSpec, width: int, name: str, memory_width: int | None = None):
        super().__init__()
        self.spec = spec
        self.merge = None if spec.merge is None else build_merge(spec.merge, width)
        width = width if spec.merge is None else spec.merge.width_at(width)
        order = ORDERS[spec.order]
        slots = (order(spec, j, width, f"{name}.branches.{j}", memory_width) for j in range(len(spec.branches)))
        self.branches = nn.ModuleList(slots)
        self.norm = _norm(spec.norm, width, f"{name}.norm") if order is Parallel and not spec.norms else None
        self.end_norm = None if spec.end_norm == NoNorm() else _norm(spec.end_norm, width, f"{name}.end_norm")

    def context_after(self, context: Context) -> Context:
        """Return the context of the block's output: that of its input, or of the grid after its merge."""
        return context if self.merge is None else self.merge.after(context)

    def forward(
        self, x: Tensor, context: Context, state: tuple[State, ...] | None = None
    ) -> tuple[Tensor, tuple[State, ...] | None]:
        after: list[Any] = []
        if self.merge is not None:
            x, context = self.merge(x, context), self.merge.after(context)
        if self.spec.order != "parallel":
            for j, branch in enumerate(self.branches):
                x = branch.offer(context.tap, "residual_before", x)  # type: ignore[operator]
                x, s = branch(x, context, None if state is None else state[j])
                x = branch.offer(context.tap, "residual_after", self._ended(x, j, context))  # type: ignore[operator]
                after.append(s)
            return x, None if state is None else tuple(after)
        shared = x if self.norm is None else self.norm(x, context)
        for j, branch in enumerate(self.branches):
            x = branch.offer(context.tap, "residual_before", x)  # type: ignore[operator]
            y, s = branch(shared, context, None if state is None else state[j])
            x = self._ended(branch.residual(x, y), j, context)  # type: ignore[operator]
            x = branch.offer(context.tap, "residual_after", x)  # type: ignore[operator]
            after.append(s)
        return x, None if state is None else tuple(after)

    def _ended(self, x: Tensor, j: int, context: Context) -> Tensor:
        """Return x after branch ``j``: after the last one, with the norm of the block's end if there is one."""
        return x if self.end_norm is None or j < len(self.branches) - 1 else self.end_norm(x, context)


def _norm(part: NormSpec, width: int, name: str) -> Norm:
    """Build the norm with the path ``name`` in the model."""
    norm = build_norm(part, width)
    norm.assign_name(name)
    return norm
