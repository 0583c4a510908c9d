"""Declarations of costs that a run on meta tensors cannot count: masked scores, scores never stored, loops.

All other costs are counted from the operators that a part runs. An operation declares the rest by a decorator:

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
    """Costs of one call that a run on meta tensors cannot count.

    stored: bytes that all attention weights would take if they were stored; 0: the operation is not attention.
    full: FLOPs of the products for all (query, key) pairs; None: equal to the FLOPs that are computed.
    hidden: function from the computed FLOPs to the FLOPs of pairs that the mask hides; called after the run, so it must
    hold no tensors.
    calls: overhead of a loop over positions, as the number of operator calls from Python that take as long; a run that
    counts costs computes all positions at once.
    """

    stored: int = 0
    full: int | None = None
    hidden: Callable[[int], int] = lambda computed: 0
    calls: int = 0


Observer = Callable[[Callable[[], Any], Unseen], Any]
"""Function (operation without arguments, its declared costs) -> result of the operation."""
_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


def declares(describe: Callable[..., Unseen]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: declare the ``Unseen`` costs of an operation, computed from its arguments by ``describe``.

    ``describe`` is called only while costs are counted.
    """

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
