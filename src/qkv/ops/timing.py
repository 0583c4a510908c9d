"""Short timings for choosing between implementations."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_HOPELESS, _LONG = 8.0, 0.1
"""A first run this many times longer than another candidate's decides if it also takes this many seconds: a kernel that is compiled when
first used takes tens of milliseconds."""
_NEAR = 2.0
"""Runs within this factor of the quickest are repeated."""


@dataclass
class Race:
    """``seconds`` of each candidate's quickest run; ``failed``: why a candidate cannot run here, by name."""

    seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def race(runs: Mapping[str, Callable[[], object]], repeats: int = 4, budget: float = 0.05) -> Race:
    """Time ``runs`` against each other, each after one run to warm up.

    Whoever is clearly slower is not run again; the others take turns, at most ``repeats`` times and ``budget`` seconds each. A
    run that raises RuntimeError, as a kernel does that a processor lacks, is out.
    """
    found = Race()
    for name, run in runs.items():
        try:
            first = _seconds(run)
            hopeless = first > max(_LONG, _HOPELESS * min(found.seconds.values(), default=first))
            found.seconds[name] = first if hopeless else _seconds(run)
        except RuntimeError as error:
            found.failed[name] = re.split(r"\.? *\n|\. ", str(error).strip())[0]
    spent = dict(found.seconds)
    for _ in range(repeats - 1):
        best = min(found.seconds.values(), default=0.0)
        near = [name for name, seconds in found.seconds.items() if seconds <= _NEAR * best and spent[name] <= budget]
        if len(near) < 2:
            break
        for name in near:
            took = _seconds(runs[name])
            spent[name] += took
            found.seconds[name] = min(found.seconds[name], took)
    return found


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
