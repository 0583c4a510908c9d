"""Shapes of what a model reads, for tests that count passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qkv.models.transformer import Transformer


def tell_reads(m: Transformer, patch: pytest.MonkeyPatch, tell: Callable[[tuple[int, ...]], object]) -> None:
    """Let ``tell`` receive the shape of the values that ``m`` reads in each pass, whichever way it reads them."""
    read, decoded = m._read, m._decoded

    def in_parts(signal: Any, *more: Any) -> Any:
        tell(tuple(signal.values.shape))
        return read(signal, *more)

    def in_one_call(tokens: Any, state: Any) -> Any:
        found = decoded(tokens, state)
        if found is not None:
            tell((len(tokens), max(map(len, tokens))))
        return found

    patch.setattr(m, "_read", in_parts)
    patch.setattr(m, "_decoded", in_one_call)


def shapes_read(m: Transformer, patch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """List that receives the shape of what ``m`` reads in each pass."""
    shapes: list[tuple[int, ...]] = []
    tell_reads(m, patch, shapes.append)
    return shapes
