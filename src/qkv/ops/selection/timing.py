"""Short timings for the selection of an implementation."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_HOPELESS, _LONG = 8.0, 0.1
"""Bounds (multiple of the best time so far, seconds): a candidate whose first run exceeds both is not run again.

A first run that is shorter may be slow only because it compiles a kernel, which takes tens of milliseconds.
"""
_NEAR = 2.0
"""Candidates within this factor of the fastest are timed again."""
_FEWEST_PAIRS = 5


@dataclass
class Race:
    """Result of timing several candidates, by name.

    seconds: shortest time of each candidate; failed: error message of each candidate that cannot run.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def race(runs: Mapping[str, Callable[[], object]], repeats: int = 4, budget: float = 0.05) -> Race:
    """Time the candidates ``runs``, each after one warm-up run.

    Candidates near the fastest are timed in turns, at most ``repeats`` times and ``budget`` seconds each; clearly
    slower candidates are timed only once. A candidate that raises RuntimeError, e.g. for a missing kernel, is reported
    as failed.
    """
    result = Race()
    for name, run in runs.items():
        try:
            first = _seconds(run)
            hopeless = first > max(_LONG, _HOPELESS * min(result.seconds.values(), default=first))
            result.seconds[name] = first if hopeless else _seconds(run)
        except RuntimeError as error:
            result.failed[name] = re.split(r"\.? *\n|\. ", str(error).strip())[0]
    spent = dict(result.seconds)
    for _ in range(repeats - 1):
        best = min(result.seconds.values(), default=0.0)
        near = [name for name, seconds in result.seconds.items() if seconds <= _NEAR * best and spent[name] <= budget]
        if len(near) < 2:
            break
        for name in near:
            took = _seconds(runs[name])
            spent[name] += took
            result.seconds[name] = min(result.seconds[name], took)
    return result


def duel(a: Callable[[], object], b: Callable[[], object], pairs: int = 16, budget: float = 1.0) -> list[float]:
    """Return the sorted ratios time of ``a`` / time of ``b``, measured in alternating runs.

    Other load on the machine slows both runs of a pair alike. At most ``pairs`` pairs run; after ``budget`` seconds the
    measurement ends, but not before five pairs.
    """
    ratios: list[float] = []
    began = time.perf_counter()
    while len(ratios) < pairs and (len(ratios) < _FEWEST_PAIRS or time.perf_counter() - began < budget):
        first = _seconds(a)
        ratios.append(first / max(_seconds(b), 1e-9))
    return sorted(ratios)


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
