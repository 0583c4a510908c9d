"""CPU and memory limits of this process: CPU affinity and container limits (Linux control groups)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
MEMORY = Path("/proc/meminfo")


def usable_cores(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the number of usable CPUs: CPU affinity, limited by the container's quota, rounded up."""
    quotas = [*_quotas_v2(groups, membership), *_quotas_v1(groups, membership)]
    return max(1, min([_cores(), *(math.ceil(quota) for quota in quotas)]))


def usable_threads() -> int:
    """Return the number of threads per operator: ``OMP_NUM_THREADS`` if it is set, else the number of usable cores."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdecimal() and int(setting) > 0 else usable_cores()


def memory_limit(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int | None:
    """Return the memory limit of the container in bytes; None for no limit."""
    limits = _values(groups, membership, "", "memory.max")
    limits += _values(groups / "memory", membership, "memory", "memory.limit_in_bytes")
    return min((int(text) for text in limits if text.isdecimal()), default=None)


def free_memory(groups: Path = GROUPS, membership: Path = MEMBERSHIP, system: Path = MEMORY) -> int | None:
    """Return the bytes that this process can still allocate in its container; None if unknown, as outside Linux."""
    try:
        lines = dict(line.split(":", 1) for line in system.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return None
    limit, used = memory_limit(groups, membership), _values(groups, membership, "", "memory.current")
    used += _values(groups / "memory", membership, "memory", "memory.usage_in_bytes")
    used_bytes = next((int(text) for text in used if text.isdecimal()), 0)
    return free if limit is None else max(0, min(free, limit - used_bytes))


@cache
def limit_threads() -> None:
    """Limit torch's threads to the usable cores, once per process, unless ``OMP_NUM_THREADS`` is set."""
    import torch

    if not os.environ.get("OMP_NUM_THREADS") and torch.get_num_threads() > usable_cores():
        torch.set_num_threads(usable_cores())


def _cores() -> int:
    """Return the number of CPUs that the process may run on (affinity), or of all CPUs if the system has no
    affinity.
    """
    counted = getattr(os, "process_cpu_count", None)  # Python 3.13
    if counted is not None:
        return counted() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas_v2(groups: Path, membership: Path) -> Iterator[float]:
    """Yield the CPU quotas, in cores, of the process's control groups (version 2), read from their files ``cpu.max``.

    A file such as ``150000 100000`` holds microseconds of CPU time and of the period; "max" is no limit.
    """
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
    """Read the file ``name`` in the process's control group under ``top`` and in its parents; return the contents."""
    contents = []
    path = _group(membership, controller)
    for folder in (path, *path.parents):
        try:
            contents.append((top / folder.relative_to("/") / name).read_text().strip())
        except (OSError, ValueError):
            continue
    return contents


def _group(membership: Path, controller: str) -> Path:
    """Return the process's control group for ``controller`` ("" for version 2); the root if there is none."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return Path("/")
    return next((Path(line[2]) for line in lines if len(line) == 3 and controller in line[1].split(",")), Path("/"))
