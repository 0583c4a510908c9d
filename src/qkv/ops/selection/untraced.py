"""Lazy ``torch.compiler.disable``, which avoids the one-second import of the compiler."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def untraced(reason: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: apply ``torch.compiler.disable(reason=…)``, but only once the compiler has been imported.

    Applying it earlier would import the compiler.
    """

    def mark(function: Callable[P, T]) -> Callable[P, T]:
        functions: list[Callable[P, T]] = []

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if not torch.compiler.is_compiling() and "torch._dynamo" not in sys.modules:
                return function(*args, **kwargs)
            if not functions:
                functions.append(torch.compiler.disable(function, reason=reason))  # type: ignore[arg-type]
            return functions[0](*args, **kwargs)

        return call

    return mark
