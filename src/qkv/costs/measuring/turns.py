"""Timing of functions in turns, A B C A B C, since a machine's speed drifts by tens of percent within minutes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

_LARGEST_SUM = 1 << 30
"""Maximum bytes of a timed sum; the time of a larger sum is extrapolated in proportion."""


@dataclass(frozen=True)
class Times:
    """Times of the repeats of one function, in seconds."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """Shortest repeat, least affected by other load."""
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """(longest - shortest) / shortest."""
        return max(self.seconds) / self.best - 1

    @property
    def middle(self) -> float:
        """Median repeat."""
        return statistics.median(self.seconds)


def in_turns(sides: Mapping[str, Callable[[], object]], repeats: int, warm_up: int = 1) -> dict[str, Times]:
    """Run every function ``warm_up`` times, then ``repeats`` times in turns: A B C A B C."""
    for run in sides.values():
        for _ in range(warm_up):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            seconds[name].append(seconds_of(run))
    return {name: Times(tuple(found)) for name, found in seconds.items()}


def seconds_of(run: Callable[[], object]) -> float:
    """Measure the duration of one call in seconds."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def reading_seconds(count: int, repeats: int = 5) -> float:
    """Measure the shortest time to sum ``count`` bytes of fp32 numbers: a lower bound for a step that reads them."""
    size = max(4, min(count, _LARGEST_SUM))
    numbers = torch.ones(size // 4)
    return count / size * in_turns({"sum": lambda: numbers.sum()}, repeats)["sum"].best
