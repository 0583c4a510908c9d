"""What decoding states hold in pages and in slots."""

from __future__ import annotations

from typing import Any

from qkv.generation.queue.requests import RequestQueue
from qkv.state.pages import Paged
from qkv.state.tree import nbytes, stores


def taken(states: list[Any], copies: int = 2) -> int:
    """Bytes of states while they are copied: pages are not, and are counted once."""
    pages = nbytes([store for store in stores(states) if isinstance(store, Paged)])
    return pages + copies * (nbytes(states) - pages)


def running(queue: RequestQueue) -> int:
    """Bytes of the states of running requests while they are copied."""
    return taken(queue._sampling.engine.states)


def held(queue: RequestQueue) -> int:
    """Bytes of the states of running requests while they are copied, and of kept states; pages of both are counted
    once.
    """
    return running(queue) + queue.nbytes - nbytes(queue._sampling.engine.states)
