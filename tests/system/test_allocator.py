"""Setting of the memory allocator: page faults of repeated large allocations, and settings that it respects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qkv.system import allocator

SCRIPT = """
import ctypes, resource, sys
from qkv.system.allocator import apart_from_kept_memory, keep_freed_memory
done = None if sys.argv[1] == "default" else keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    for _ in range(8):
        place = libc.malloc(64 << 20)
        ctypes.memset(place, 1, 64 << 20)
        libc.free(place)
if sys.argv[1] == "apart":
    with apart_from_kept_memory():
        use()
else:
    if sys.argv[1] == "after":
        with apart_from_kept_memory():
            pass
    use()
print(done, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> tuple[str, int]:
    done, found = subprocess.run(
        [sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True
    ).stdout.split()
    return done, int(found)


@pytest.mark.skipif(not Path("/lib64/ld-linux-x86-64.so.2").exists(), reason="glibc on x86-64 Linux")
def test_freed_memory_is_used_again() -> None:
    done, kept = faults("keep")
    if done != "True":
        pytest.skip("an environment variable sets the allocator")
    default = faults("default")[1]
    assert kept < default / 4
    assert faults("after")[1] < default / 4
    assert faults("apart")[1] > default / 2


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_settings_of_the_user_are_left_as_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: pytest.fail("the allocator is set"))
    assert not allocator.keep_freed_memory.__wrapped__()


def test_a_library_without_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in allocator._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not allocator.keep_freed_memory.__wrapped__()
