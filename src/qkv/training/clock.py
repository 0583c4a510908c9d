"""Clock of training, in a module of its own so that tests can replace it."""

from __future__ import annotations

import time


def seconds() -> float:
    """Return the seconds since an arbitrary fixed moment; only differences mean something."""
    return time.perf_counter()
