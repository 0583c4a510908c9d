"""Threads of OpenMP, among which operators on the CPU divide their work.

libgomp gives each thread that calls operators a team of its own. Between two operators the threads of a team spin for
some milliseconds, so that the next one starts at once. If all teams of a process together have more threads than there
are cores, waiting threads sleep instead, and each operator waits until the system has woken them: a model of 4 ms per
token then takes 8 ms. So a thread that has no work for a while should release its team.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

_SOFT = 1
"""Argument ``omp_pause_soft`` (OpenMP 5.0, 2018): settings such as the number of threads stay as they are."""


def release_team() -> None:
    """End the other threads of the calling thread's team; the next operator starts them again in about 0.1 ms.

    Nothing happens if torch computes with another library than libgomp.
    """
    pause = _pause()
    if pause is not None:
        pause(_SOFT)


@cache
def _pause() -> Any:
    """Return ``omp_pause_resource_all`` of the libgomp that torch has loaded, or None."""
    import torch

    for file in (Path(torch.__file__).parent / "lib").glob("libgomp*"):
        return getattr(ctypes.CDLL(str(file)), "omp_pause_resource_all", None)
    return None
