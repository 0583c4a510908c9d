"""Functions that the compiler leaves alone, without the second that importing the compiler takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def untraced(reason: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """``torch.compiler.disable(reason=…)``, applied at the first call: applied to a definition, it imports ``torch._dynamo``."""

    def mark(function: Callable[P, T]) -> Callable[P, T]:
        made: list[Callable[P, T]] = []

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if not made:
                made.append(torch.compiler.disable(function, reason=reason))  # type: ignore[arg-type]
            return made[0](*args, **kwargs)

        return call

    return mark
