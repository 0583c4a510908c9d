"""Declaration of what counting without values cannot see: masked attention scores, scores never stored, loops.

Everything else is counted from the operators that a part runs. An operation declares the rest beside itself:

    @declares(lambda q, k, v, …: Unseen(stored=…, hidden=…))
    def my_attention(q, k, v, …): …
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


class Unseen(NamedTuple):
    """Properties of one call that a run without values cannot see.

    stored: bytes of all attention weights, if they were stored; 0: the operation is no attention.
    full: FLOPs of the products for all pairs; None: those that are computed.
    hidden: FLOPs of pairs that the mask hides, from the computed FLOPs; called after the run, so must hold no tensors.
    calls: small operators of a loop over positions, which runs once here, in calls from Python that take as long.
    """

    stored: int = 0
    full: int | None = None
    hidden: Callable[[int], int] = lambda computed: 0
    calls: int = 0


Observer = Callable[[Callable[[], Any], Unseen], Any]
"""(operation, what it declares) -> the operation's result."""
_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


def declares(describe: Callable[..., Unseen]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: what an operation declares, from its arguments. ``describe`` is called only while counting costs."""

    def mark(operation: Callable[P, T]) -> Callable[P, T]:
        @wraps(operation)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            observer = (
                None if torch.compiler.is_compiling() else _observer.get()
            )  # the compiler cannot trace context variables
            if observer is None:
                return operation(*args, **kwargs)
            return observer(lambda: operation(*args, **kwargs), describe(*args, **kwargs))

        return call

    return mark


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Context manager: pass declared operations through ``observer``."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)
