"""Shapes of what a model reads, for tests that count passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qkv.models.fast import runners
from qkv.models.transformer import Transformer


def tell_reads(m: Transformer, patch: pytest.MonkeyPatch, tell: Callable[[tuple[int, ...]], object]) -> None:
    """Let ``tell`` receive the shape of the values that ``m`` reads in each pass, whichever way it reads them."""
    read, (first, *others) = m._read, runners.RUNNERS["decode"]

    def in_parts(signal: Any, *more: Any) -> Any:
        tell(tuple(signal.values.shape))
        return read(signal, *more)

    def in_one_call(model: Transformer, tokens: Any, state: Any) -> Any:
        result = first(model, tokens, state)
        if result is not None and model is m:
            tell((len(tokens), max(map(len, tokens))))
        return result

    patch.setattr(m, "_read", in_parts)
    patch.setitem(runners.RUNNERS, "decode", (in_one_call, *others))


def shapes_read(m: Transformer, patch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """List that receives the shape of what ``m`` reads in each pass."""
    shapes: list[tuple[int, ...]] = []
    tell_reads(m, patch, shapes.append)
    return shapes
