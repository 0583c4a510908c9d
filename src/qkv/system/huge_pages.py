"""Memory in transparent huge pages (Linux), which need fewer address translations by the processor."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from qkv.system.optional import turned_off

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SIZE, ALIGNMENT = 1 << 21, 64
"""Size in bytes of a huge page on most processors, and of a cache line."""


def possible(setting: Path = SETTING) -> bool:
    """Return whether the system grants huge pages on request (``madvise``), and ``QKV_WITHOUT`` permits them."""
    return not turned_off("huge-pages") and _system_allows(setting)


@cache
def _system_allows(setting: Path) -> bool:
    try:
        chosen = setting.read_text()
    except OSError:
        return False
    return hasattr(mmap, "MADV_HUGEPAGE") and ("[madvise]" in chosen or "[always]" in chosen)


def blocks(sizes: Sequence[int]) -> list[Tensor]:
    """Allocate adjacent byte tensors (size), one for each of ``sizes`` > 0, all zero, in huge pages if ``possible``.

    Each tensor has its own storage; the memory is freed with the last tensor.
    """
    padded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    # Private, because systems grant no huge pages to shared memory, the default of mmap.
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    region = mmap.mmap(-1, sum(padded) + SIZE, **private)
    if possible():
        region.madvise(mmap.MADV_HUGEPAGE)
    begin = -torch.frombuffer(region, dtype=torch.uint8, count=1).data_ptr() % SIZE
    places = itertools.accumulate(padded, initial=begin)
    return [
        torch.frombuffer(region, dtype=torch.uint8, count=size, offset=place)
        for size, place in zip(sizes, places, strict=False)
    ]
