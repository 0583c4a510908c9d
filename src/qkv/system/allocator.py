"""Setting of the C library's memory allocator."""

from __future__ import annotations

import ctypes
import os
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt (malloc.h of glibc)."""
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


@cache
def keep_freed_memory() -> bool:
    """Let the process keep freed memory for its next tensors, once per process; False where that cannot be set.

    By default glibc returns tensors of 32 MB and more to the system when they are freed, and the system clears every
    page anew at the next allocation: half of the time of a training pass over 65,536 positions. The peak of memory
    stays the same. Settings by environment variables, and other allocators, are left as they are.
    """
    if any(os.environ.get(name) for name in _VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))
