"""Short timings for choosing between implementations."""

from __future__ import annotations

import time
from collections.abc import Callable


def shortest(run: Callable[[], object], repeats: int = 5, budget: float = 0.05) -> float:
    """Seconds of the quickest of ``repeats`` runs after one to warm up; fewer once ``budget`` seconds are spent."""
    run()
    best, spent = float("inf"), 0.0
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        took = time.perf_counter() - began
        best, spent = min(best, took), spent + took
        if spent > budget:
            break
    return best
