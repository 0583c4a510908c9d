"""Processor name and settings that affect timings."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from qkv.system import optional
from qkv.system.allowance import usable_cores, usable_threads

_VARIABLES = (
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    optional.VARIABLE,
)
_CPUINFO = Path("/proc/cpuinfo")


def processor_name() -> str:
    """Return processor model and number of threads, such as ``AMD EPYC, 2 threads``."""
    return f"{processor_model()}, {usable_threads()} threads"


def processor_model() -> str:
    """Return the processor model, such as ``AMD EPYC``."""
    if _CPUINFO.is_file():
        with _CPUINFO.open(errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    return platform.processor() or platform.machine()


def settings() -> dict[str, str]:
    """Return the restrictions of this process: environment variables that limit instructions, optional paths or
    threads, and the number of usable cores if it is limited. Empty without restrictions.
    """
    restrictions = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return restrictions | ({"cores": str(usable_cores())} if usable_cores() < (os.cpu_count() or 1) else {})
