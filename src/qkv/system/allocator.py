"""Settings of glibc's memory allocator."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt, from malloc.h of glibc."""
_OWN_PAGES, _ALL_KEPT = 1 << 20, 1 << 30
"""Values of the mmap threshold in bytes. A larger allocation gets pages of its own, which return to the system when it
is freed: 1 MB for most tensors, 1 GB for none.
"""
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""Environment variables that configure the allocator or replace it; the process then keeps its settings."""


@cache
def keep_freed_memory() -> bool:
    """Let the process reuse freed memory for later tensors, once per process; return False if that is impossible.

    By default glibc returns tensors of 32 MB and more to the system when they are freed, and the system clears every
    page again at the next allocation, which takes half of the time of a training pass over 65,536 positions. Peak
    memory stays the same. Settings by environment variables, and other allocators, are not changed.
    """
    if any(os.environ.get(name) for name in _VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _ALL_KEPT)) and bool(mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))


@contextlib.contextmanager
def apart_from_kept_memory() -> Iterator[None]:
    """Context manager: return freed tensors of 1 MB and more to the system inside; afterwards, keep them for reuse.

    For the loading of weights, where freed temporary copies would leave holes between the weights.
    """
    if not keep_freed_memory():
        yield
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_MMAP_THRESHOLD, _OWN_PAGES)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, _ALL_KEPT)
