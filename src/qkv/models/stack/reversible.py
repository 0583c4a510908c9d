"""Reversible blocks, whose backward pass recomputes the inputs of each branch from its outputs.

    forward    (a, b) -> (b, a + f(b))            only the output of the last branch is stored
    backward   (b, c) -> (c - f(b), b)            recomputes f(b) with gradients and the same random numbers

Activation memory is thus independent of the number of branches (RevNet, Gomez et al. 2017; Reformer, Kitaev et al.
2020). Recomputed values differ by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from qkv.layers.context import Context
from qkv.models.block import PreNorm
from qkv.ops.selection.choices import table, using
from qkv.ops.selection.untraced import untraced

Slots = Sequence[tuple[Any, Context]]
"""Branches with norms and residual connections, each with the context of its layer."""


@untraced("a backward pass that recomputes activations cannot be traced")
def through_reversible(slots: Slots, x: Tensor) -> Tensor:
    """Apply the branches ``slots`` to both streams x (B, N, 2 D), with a backward pass that recomputes activations.

    Gradients reach x, all parameters and the memory's vectors; the backward pass can run only once.
    """
    learned = {id(p): p for slot, _ in slots for p in slot.parameters() if p.requires_grad}
    memories = {
        id(v): v
        for _, context in slots
        for v in [v for memory in context.memories.values() for v in memory.vectors]
        if v.requires_grad
    }
    return _Reversible.apply(slots, x, *learned.values(), *memories.values())  # type: ignore[no-any-return]


class _Surroundings:
    """Autocast settings, table of choices and random-number state of the forward pass, for the recomputation."""

    def __init__(self, x: Tensor, random: bool):
        self.kind, self.table = x.device.type, table()
        self.lowered = torch.amp.is_autocast_available(self.kind) and torch.is_autocast_enabled(self.kind)
        self.dtype = torch.get_autocast_dtype(self.kind) if self.lowered else None
        self.states = (torch.get_rng_state(), *get_device_states(x)) if random else None

    def precision(self) -> AbstractContextManager[Any]:
        """Return a context manager for the forward pass's autocast, without weight cache: each graph needs its own
        casts.
        """
        if not torch.amp.is_autocast_available(self.kind):
            return nullcontext()
        return torch.autocast(self.kind, self.dtype, enabled=self.lowered, cache_enabled=False)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Context manager: set the random-number state of the forward pass; at the end, restore the current one."""
        with self.precision(), using(self.table):
            if self.states is None:
                yield
                return
            here, devices, states = self.states
            with torch.random.fork_rng(devices, device_type=self.kind if devices else "cuda"):
                torch.set_rng_state(here)
                set_device_states(devices, states)
                yield


class _Reversible(torch.autograd.Function):
    """Autograd function of a sequence of reversible branches. ``leaves``: tensors other than x that need gradients."""

    @staticmethod
    def forward(ctx: Any, slots: Slots, x: Tensor, *leaves: Tensor) -> Tensor:
        ctx.slots, ctx.leaves, ctx.surroundings = slots, leaves, []
        for slot, context in slots:
            surroundings = _Surroundings(x, slot.training)
            ctx.surroundings.append(surroundings)
            with surroundings.precision():
                _, y, _ = _computed(slot, x.chunk(2, -1)[1], context, leaves)
            x = slot.residual.joined(x, y.detach())
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        gradients: list[Tensor | None] = [None] * len(ctx.leaves)
        for (slot, context), surroundings in zip(reversed(ctx.slots), reversed(ctx.surroundings), strict=True):
            with surroundings.again():
                read, y, leaves = _computed(slot, x.chunk(2, -1)[0], context, ctx.leaves)
            of_read, *of_leaves = _gradients(y, [read, *leaves], grad.chunk(2, -1)[1])
            gradients = [
                a if b is None else b if a is None else a + b for a, b in zip(gradients, of_leaves, strict=True)
            ]
            with torch.no_grad():
                x = slot.residual.separated(x, y.detach())
                rest, passed = grad.chunk(2, -1)
                grad = torch.cat((passed, rest if of_read is None else rest + of_read), -1)
        return None, grad, *gradients


@torch.enable_grad()
def _computed(
    slot: PreNorm, b: Tensor, context: Context, leaves: Sequence[Tensor]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Compute one branch from detached inputs, to get its gradients alone; return (b, branch output, leaves).

    The forward pass builds the graph too and discards it: without a graph, ops may choose other implementations and
    draw other random numbers.
    """
    read = b.detach().requires_grad_()
    cut = {id(leaf): leaf if leaf.is_leaf else leaf.detach().requires_grad_() for leaf in leaves}
    if context.memories:
        memories = {
            name: memory._replace(vectors=tuple(cut.get(id(v), v) for v in memory.vectors))
            for name, memory in context.memories.items()
        }
        context = replace(context, memories=memories)
    # A view, because module hooks, such as those of torch's FLOP counter, reject leaf tensors in a backward pass.
    y, _ = slot.added(read.view_as(read), context, None)
    return read, slot.residual.dropped(y), list(cut.values())


def _gradients(y: Tensor, leaves: list[Tensor], grad: Tensor) -> Sequence[Tensor | None]:
    """Return the gradients of ``leaves``, None for a leaf that y does not depend on; ``grad``: gradient of y."""
    if not y.requires_grad:
        return [None] * len(leaves)
    return torch.autograd.grad(y, leaves, grad.to(y.dtype), allow_unused=True)
