"""What the system allows this process: processors and memory, by affinity and by the limits of a container (Linux control groups)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cores(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Processors that this process may run on: those of its affinity, but no more than the quota of its container, rounded up."""
    quotas = [*_quotas_v2(groups, membership), *_quotas_v1(groups, membership)]
    return max(1, min([_cores(), *(math.ceil(quota) for quota in quotas)]))


def usable_threads() -> int:
    """Threads of one operator: as many as ``OMP_NUM_THREADS`` says if it is set, else one for each usable core."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else usable_cores()


def memory_limit(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes that the container may take; None where nothing is said."""
    said = _values(groups, membership, "", "memory.max")
    said += _values(groups / "memory", membership, "memory", "memory.limit_in_bytes")
    return min((int(text) for text in said if text.isdecimal()), default=None)


@cache
def limit_threads() -> None:
    """Once a process: keep torch from starting more threads than there are usable cores, unless ``OMP_NUM_THREADS`` is set."""
    import torch

    if not os.environ.get("OMP_NUM_THREADS") and torch.get_num_threads() > usable_cores():
        torch.set_num_threads(usable_cores())


def _cores() -> int:
    """By affinity where the system knows it, else all."""
    counted = getattr(os, "process_cpu_count", None)  # Python 3.13
    if counted is not None:
        return counted() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas_v2(groups: Path, membership: Path) -> Iterator[float]:
    """``max 100000`` or ``150000 100000``: microseconds of processor time in each period."""
    for text in _values(groups, membership, "", "cpu.max"):
        quota, _, period = text.partition(" ")
        yield from _quota(quota, period)


def _quotas_v1(groups: Path, membership: Path) -> Iterator[float]:
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    for quota, period in zip(*(_values(groups / "cpu", membership, "cpu", name) for name in names), strict=False):
        yield from _quota(quota, period)


def _quota(quota: str, period: str) -> Iterator[float]:
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        yield int(quota) / int(period)


def _values(top: Path, membership: Path, controller: str, name: str) -> list[str]:
    """Contents of the file ``name`` in the process's group and in those above it."""
    found = []
    path = _group(membership, controller)
    for folder in (path, *path.parents):
        try:
            found.append((top / folder.relative_to("/") / name).read_text().strip())
        except (OSError, ValueError):
            continue
    return found


def _group(membership: Path, controller: str) -> Path:
    """The process's group under ``controller``, "" for version 2; the top where nothing is said."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return Path("/")
    return next((Path(line[2]) for line in lines if len(line) == 3 and controller in line[1].split(",")), Path("/"))
