"""Clock of training, in a separate module so that tests can replace it."""

from __future__ import annotations

import time


def seconds() -> float:
    """Return the seconds since an arbitrary fixed moment; only differences between two calls have a meaning."""
    return time.perf_counter()
