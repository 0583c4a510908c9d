"""Runners: faster ways to read new positions with a state than calling block after block, in the order of trial.

A runner is a function (stack, x (B, N, D), context, state) -> vectors (B, N, D) after the last block and the norm; it
stores the new keys and values in ``state``. If it does not support a call, it returns None: the blocks must be called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from qkv.layers.context import Context
from qkv.models.fast.native_step import native_step
from qkv.models.fast.replayed_step import replayed_step


def by_recorded_graph(stack: Any, x: Tensor, context: Context, state: Sequence[Any]) -> Tensor | None:
    """Replay the kernels of the stack, recorded as a CUDA graph."""
    step = replayed_step(stack, x, context, state)
    return None if step is None else step(x, context)


def by_native_library(stack: Any, x: Tensor, context: Context, state: Sequence[Any]) -> Tensor | None:
    """Run the blocks in one call of the native library."""
    if not stack.native or context.tap is not None or context.arrival is None:
        return None
    step = native_step(stack, stack.walked, x, context.arrival, state)
    return None if step is None else stack.norm(step(x, context.arrival, state), context)


RUNNERS: tuple[Callable[[Any, Tensor, Context, Sequence[Any]], Tensor | None], ...] = (
    by_recorded_graph,
    by_native_library,
)


def run(stack: Any, x: Tensor, context: Context, state: Sequence[Any]) -> Tensor | None:
    """Return the output of the first runner that supports the call; None if no runner does."""
    found = (runner(stack, x, context, state) for runner in RUNNERS)
    return next((y for y in found if y is not None), None)
