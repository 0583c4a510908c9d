"""Draw N random specs, valid ones and others, and say which of them break something.

Run by ``make fuzz ARGS="--count 5000 --seed 0"``. A failure is printed with its seed and the smallest spec that was
found to fail in the same way. The exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from tests.fuzz.check import Failure, drawn, outcome

SECONDS, TRIES, MEMORY = 20, 150, 6 << 30


def main() -> int:
    """Read the options, draw, report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=5000)
    options.add_argument("--seed", type=int, default=0, help="of the first spec; the others follow it")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    limit_memory()
    found, kinds, started = Counter[str](), Counter[str](), time.perf_counter()
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        result, why = tried(seed)
        found[result] += 1
        if result == "failed":
            kinds[why] += 1
            if kinds[why] <= 2:
                data, sound = drawn(seed)
                print(f"seed {seed}: {why}\n  {shown(smallest(data, seed, sound, why))}", flush=True)
    took = time.perf_counter() - started
    print(
        f"{sum(found.values())} specs in {took:.0f} s: "
        + ", ".join(f"{found[name]} {name}" for name in ("valid", "invalid", "failed"))
    )
    for why, count in kinds.most_common():
        print(f"{count:5} {why}")
    return 1 if found["failed"] else 0


def tried(seed: int) -> tuple[str, str]:
    """(valid, invalid or failed; what failed) of the spec with this number."""
    data, sound = drawn(seed)
    try:
        with in_time(SECONDS):
            return outcome(data, seed, sound), ""
    except Exception as error:
        return "failed", _signature(error)


def smallest(data: dict[str, Any], seed: int, sound: bool, why: str) -> dict[str, Any]:
    """``data`` with everything left out without which it fails in the same way."""
    tries, smaller = 0, True
    while smaller and tries < TRIES:
        smaller = False
        for holder_path in [path for path, _ in _paths(data)]:
            candidate, tries = _without(data, holder_path), tries + 1
            if candidate is not None and tries < TRIES and _failing(candidate, seed, sound) == why:
                data, smaller = candidate, True
                break
    return data


def shown(data: Any) -> str:
    """A spec in one line, as JSON where that can hold it."""
    try:
        return json.dumps(data)[:4000]
    except (TypeError, ValueError):
        return "a spec with an integer that cannot be written"


def limit_memory() -> None:
    """Where the system can: a spec that asks for too much fails alone, and not the machine."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


@contextlib.contextmanager
def in_time(seconds: int) -> Iterator[None]:
    """Raise ``Failure`` where something takes longer, on systems that have alarms."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def late(number: int, frame: Any) -> None:
        raise Failure(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _failing(data: dict[str, Any], seed: int, sound: bool) -> str:
    try:
        with in_time(SECONDS):
            outcome(data, seed, sound)
    except Exception as error:
        return _signature(error)
    return ""


def _signature(error: BaseException) -> str:
    """Kind and beginning of an error, numbers left out, so that one fault is counted once."""
    text = "".join("#" if c.isdigit() else c for c in str(error).split("\n")[0])[:100]
    return f"{type(error).__name__}: {text}"


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield (*before, key), child
        yield from _paths(child, (*before, key))


def _without(data: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any] | None:
    copy = deepcopy(data)
    holder: Any = copy
    for key in path[:-1]:
        holder = holder[key]
    if path[-1] == "kind":
        return None
    del holder[path[-1]]
    return copy


if __name__ == "__main__":
    sys.exit(main())
