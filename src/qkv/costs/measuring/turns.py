"""Time functions in turns, A B C A B C, because a machine's speed varies by tens of percent within minutes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

_LARGEST_SUM = 1 << 30
"""Maximum number of bytes that are summed; the time for more bytes is extrapolated in proportion."""


@dataclass(frozen=True)
class Times:
    """Seconds of each repetition of one function."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """Shortest repetition in seconds, which is least affected by other load."""
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """Relative spread of the repetitions: (longest - shortest) / shortest."""
        return max(self.seconds) / self.best - 1

    @property
    def middle(self) -> float:
        """Median repetition in seconds."""
        return statistics.median(self.seconds)


def in_turns(sides: Mapping[str, Callable[[], object]], repeats: int, warm_up: int = 1) -> dict[str, Times]:
    """Run every function ``warm_up`` times, then ``repeats`` times in turns: A B C A B C. Return name -> times."""
    for run in sides.values():
        for _ in range(warm_up):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            seconds[name].append(seconds_of(run))
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def seconds_of(run: Callable[[], object]) -> float:
    """Measure the duration of one call in seconds."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def reading_seconds(count: int, repeats: int = 5) -> float:
    """Measure the shortest time in seconds to sum ``count`` bytes of fp32 numbers: a lower bound for a step that reads
    them.
    """
    size = max(4, min(count, _LARGEST_SUM))
    numbers = torch.ones(size // 4)
    return count / size * in_turns({"sum": lambda: numbers.sum()}, repeats)["sum"].best
