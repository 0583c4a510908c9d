"""Runners: faster implementations of decoding methods, tried in order before the method that defines the result.

    method    runner
    decode    (model, tokens, state) -> ``Decoded``
    read_on   (stack, x (B, N, D), context, state) -> (vectors (B, N, D) after the last block and the norm, next state)

A runner takes the arguments of its method and returns the same result, or None if it does not support the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from qkv.layers.context import Context
from qkv.models.fast.native_step import native_step
from qkv.models.fast.native_token import decode
from qkv.models.fast.replayed_step import replayed_step

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def by_recorded_graph(
    stack: Any, x: Tensor, context: Context, state: Sequence[Any]
) -> tuple[Tensor, Sequence[Any]] | None:
    """Replay the kernels of the stack, recorded as a CUDA graph; return None if the stack cannot be recorded."""
    step = replayed_step(stack, x, context, state)
    return None if step is None else (step(x, context), tuple(state))


def by_native_library(
    stack: Any, x: Tensor, context: Context, state: Sequence[Any]
) -> tuple[Tensor, Sequence[Any]] | None:
    """Run the blocks in one call of the native library; return None if it does not support them."""
    if stack.depth_average is not None or stack.reversible or context.tap is not None or context.arrival is None:
        return None
    step = native_step(stack, stack.walked, x, context.arrival, state)
    return None if step is None else (stack.norm(step(x, context.arrival, state), context), tuple(state))


RUNNERS: dict[str, tuple[Callable[..., Any], ...]] = {
    "decode": (decode,),
    "read_on": (by_recorded_graph, by_native_library),
}
"""Runners in the order in which they are tried, by the name of the method."""


def after_runners(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorate a decoding method: call its ``RUNNERS`` first, and the method only if none of them supports the call."""
    name = method.__name__

    @wraps(method)
    def run(self: S, *inputs: P.args, **more: P.kwargs) -> T:
        for runner in RUNNERS[name]:
            if (result := runner(self, *inputs, **more)) is not None:
                return result  # type: ignore[no-any-return]
        return method(self, *inputs, **more)

    return run
