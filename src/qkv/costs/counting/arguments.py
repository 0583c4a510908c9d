"""Tensors among the arguments and results of operators: lists, tuples and dictionaries, nested in each other.

A count looks at them several times per operator. torch's own functions for trees know more types and take most of the
time of a count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors in ``value``, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for part in value for tensor in tensors(part)]


def map_tensors(f: Callable[[Tensor], Any], value: Any) -> Any:
    """Return ``value`` with ``f(t)`` in place of each tensor t."""
    if isinstance(value, Tensor):
        return f(value)
    if isinstance(value, dict):
        return {key: map_tensors(f, part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [map_tensors(f, part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value
