"""Measured rates of this machine, stored in the cache and used to estimate times."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from qkv.system.allowance import memory_limit
from qkv.system.cache import cache_folder
from qkv.system.files import write_file
from qkv.system.processor import processor_name, settings


@dataclass(frozen=True)
class Machine:
    """Measured rates of this machine for the operators of a model.

    processor: name and number of threads, from ``processor_name``.
    flops: FLOP/s of linear layers, forward and backward, by precision.
    bandwidth: bytes/s of weights in a matrix–vector product, for more weights than caches hold.
    call: seconds of one small operator, forward.
    attention: FLOP/s of causal attention, forward and backward, counting full score matrices; None: as ``flops``.
    elements: bytes/s of norms and activation functions: bytes that they save for the backward pass, per second of
        forward and backward; None: as ``bandwidth``.
    """

    processor: str
    flops: dict[str, float]
    bandwidth: float
    call: float
    attention: float | None = None
    elements: float | None = None

    def flops_at(self, precision: str) -> float:
        """Return the FLOP/s at ``precision``; if that was not measured, the FLOP/s at fp32."""
        return self.flops.get(precision, self.flops["fp32"])

    def runs_in(self, name: str) -> str:
        """Return the precision ``name`` if products in it are faster than in fp32, else "fp32"; see
        ``qkv.ops.linear.precision``.
        """
        return name if self.flops_at(name) > self.flops_at("fp32") else "fp32"

    @property
    def precision(self) -> Literal["fp32", "bf16"]:
        """Recommended precision for training: bf16 only if it is over 1.3 times as fast as fp32, because it rounds
        more.
        """
        return "bf16" if self.flops_at("bf16") > 1.3 * self.flops_at("fp32") else "fp32"


def physical_memory() -> int | None:
    """Return the physical memory in bytes; None if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def usable_memory() -> int | None:
    """Return the bytes available to this process: physical memory, limited by its container; None if unknown."""
    return min((size for size in (physical_memory(), memory_limit()) if size is not None), default=None)


def fits_memory(needed: int) -> bool:
    """Return True if ``needed`` bytes are at most three quarters of the usable memory."""
    most = usable_memory()
    return most is None or needed <= 0.75 * most


def machine_file() -> Path:
    """Return the path of ``machine.json`` in the cache folder (``QKV_CACHE``, or the user's cache folder)."""
    return cache_folder() / "machine.json"


def stored_machine() -> Machine | None:
    """Read the stored rates; None if they are missing, unreadable, or of another processor or other processor
    settings.
    """
    try:
        stored = json.loads(machine_file().read_text())
        limits = stored.pop("settings", {})
        machine = Machine(**stored)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return machine if (machine.processor, limits) == (processor_name(), settings()) else None


def store_machine(machine: Machine) -> Path:
    """Write the rates atomically and return the file's path. Raises OSError."""
    path = machine_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps({**asdict(machine), "settings": settings()}, indent=1))
    return path
