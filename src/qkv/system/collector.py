"""Pauses of Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


def collect_once() -> None:
    """Collect garbage now, and exclude live objects from later collections; for a process that has just started.

    A collection among the objects of a server with a model of 135 million parameters takes 0.2 s, which its first
    request would wait for.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def paused() -> Generator[None]:
    """Context manager: no garbage collection inside; later collections leave out the objects that are alive at its end.

    Imports create hundreds of thousands of objects that live as long as the process. Each collection during imports
    visits all earlier objects, which takes a fifth of the time of ``qkv generate`` with a model of 124 million
    parameters.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()
