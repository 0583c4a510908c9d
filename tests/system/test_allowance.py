"""What a process may use: one core, two, eight, a container with a quota, one with 4 GB, systems that say nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from qkv.costs.measuring import machine
from qkv.system import allowance
from qkv.system.allowance import free_memory, memory_limit, usable_cores, usable_threads

GB = 1 << 30


def system(folder: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A tree of control groups, and the file that says where the process stands in it."""
    for name, text in files.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (folder / "cgroup").write_text(membership)
    return folder / "groups", folder / "cgroup"


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch):
    def of(count: int) -> None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(os, "process_cpu_count", lambda: count, raising=False)

    return of


@pytest.mark.parametrize("count", [1, 2, 8])
def test_all_cores_where_nothing_limits_them(cores, count: int, tmp_path: Path) -> None:
    cores(count)
    assert usable_cores(tmp_path, tmp_path / "absent") == count
    assert memory_limit(tmp_path, tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("membership", "files", "wanted"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "max 100000"}, 64),
        ("0::/", {"cpu.max": "20000 100000"}, 1),
        ("0::/pod/main", {"pod/main/cpu.max": "max 100000", "pod/cpu.max": "400000 100000"}, 4),
        (
            "4:cpu,cpuacct:/docker/a\n1:memory:/",
            {"cpu/docker/a/cpu.cfs_quota_us": "150000", "cpu/docker/a/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("4:cpu,cpuacct:/docker/a", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        ("nonsense", {"cpu.max": "what"}, 64),
    ],
    ids=["1.5", "unlimited", "0.2", "parent", "version 1", "version 1 inside", "version 1 unlimited", "nonsense"],
)
def test_a_quota_limits_the_threads(cores, tmp_path: Path, membership: str, files: dict[str, str], wanted: int) -> None:
    cores(64)
    assert usable_cores(*system(tmp_path, membership, files)) == wanted


@pytest.mark.parametrize(
    ("membership", "files", "wanted"),
    [
        ("0::/", {"memory.max": str(4 * GB)}, 4 * GB),
        ("0::/", {"memory.max": "max"}, None),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": str(GB)}, GB),
        ("9:memory:/x", {"memory/x/memory.limit_in_bytes": str(2 * GB)}, 2 * GB),
    ],
)
def test_the_memory_of_a_container(tmp_path: Path, membership: str, files: dict[str, str], wanted: int | None) -> None:
    assert memory_limit(*system(tmp_path, membership, files)) == wanted


def test_systems_that_know_no_affinity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("process_cpu_count", "sched_getaffinity", "sysconf"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores(tmp_path, tmp_path / "absent") == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path, tmp_path / "absent") == 1
    assert machine.physical_memory() is None


def test_the_figures_of_a_machine_belong_to_its_threads(cores, monkeypatch: pytest.MonkeyPatch) -> None:
    cores(8)
    monkeypatch.setattr(allowance, "usable_cores", lambda: 8)
    assert machine.processor_name().endswith(", 8 threads")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert usable_threads() == 3
    assert machine.processor_name().endswith(", 3 threads")
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert usable_threads() == 8


@pytest.mark.parametrize(("asked", "wanted"), [("", 2), ("5", 5)])
def test_torch_starts_no_more_threads_than_may_run(
    cores, monkeypatch: pytest.MonkeyPatch, asked: str, wanted: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(allowance, "usable_cores", lambda: 2)
    threads = [5]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    allowance.limit_threads.__wrapped__()
    assert threads[-1] == wanted


def test_the_smaller_of_machine_and_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "physical_memory", lambda: 4 * GB)
    for limit, wanted in ((None, 4 * GB), (64 * GB, 4 * GB), (GB, GB)):
        monkeypatch.setattr(machine, "memory_limit", lambda limit=limit: limit)
        assert machine.usable_memory() == wanted
    assert machine.fits_memory(GB // 2)
    assert not machine.fits_memory(GB)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [({}, 2048), ({"memory.max": "max"}, 2048), ({"memory.max": "3000", "memory.current": "1000"}, 2000)],
)
def test_free_memory_is_that_of_the_system_within_the_container(
    tmp_path: Path, files: dict[str, str], wanted: int
) -> None:
    state = tmp_path / "meminfo"
    state.write_text("MemTotal: 4 kB\nMemAvailable:       2 kB\n")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert free_memory(tmp_path, tmp_path / "absent", state) == wanted


def test_free_memory_is_none_where_the_system_does_not_tell_it(tmp_path: Path) -> None:
    assert free_memory(tmp_path, tmp_path / "absent", tmp_path / "absent") is None
