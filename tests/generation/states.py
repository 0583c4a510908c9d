"""What decoding states hold in pages and in slots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qkv.generation.requests import RequestQueue
from qkv.state.pages import Paged
from qkv.state.tree import nbytes


def paged(state: Any) -> Iterator[Paged]:
    """Stores in pages anywhere in a state."""
    if isinstance(state, Paged):
        yield state
    elif isinstance(state, (tuple, list)):
        for part in state:  # pyright: ignore[reportUnknownVariableType]
            yield from paged(part)


def taken(states: list[Any], copies: int = 2) -> int:
    """Bytes of states while they are copied: pages are not, and are counted once."""
    pages = nbytes(list(paged(states)))
    return pages + copies * (nbytes(states) - pages)


def running(queue: RequestQueue) -> int:
    """Bytes of the states of running requests while they are copied."""
    return taken(queue._sampling.engine.states)
