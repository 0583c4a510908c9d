"""Find and replace tensors in the arguments and results of operators: nested lists, tuples and dictionaries.

These functions run several times per operator. torch's own functions for nested structures support more types, and
would take most of the time of a count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def tensors(value: Any) -> list[Tensor]:
    """Return all tensors in ``value``, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for part in value for tensor in tensors(part)]


def map_tensors(f: Callable[[Tensor], Any], value: Any) -> Any:
    """Return a copy of ``value`` in which ``f(t)`` replaces each tensor t."""
    if isinstance(value, Tensor):
        return f(value)
    if isinstance(value, dict):
        return {key: map_tensors(f, part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [map_tensors(f, part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value
