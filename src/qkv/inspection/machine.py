"""What this machine can do, measured once and kept: the figures that turn work into time."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from qkv.system.allowance import memory_limit
from qkv.system.cache import cache_folder, replace_text
from qkv.system.processor import processor_name, settings


@dataclass(frozen=True)
class Machine:
    """Rates that a model's own operators reach here.

    processor: its name and the number of threads, as ``processor_name`` gives it.
    flops: products of a linear map, forward and backward, in FLOP/s, by precision.
    bandwidth: bytes of weights that one row passes through, a second; more weights than the caches hold.
    call: seconds that one small operator takes, forward.
    attention: products of causal attention, forward and backward, over whole score matrices, in FLOP/s; None for those of ``flops``.
    elements: bytes that norms and activations keep for the backward pass, a second of their forward and backward passes together;
        None for ``bandwidth``.
    """

    processor: str
    flops: dict[str, float]
    bandwidth: float
    call: float
    attention: float | None = None
    elements: float | None = None

    def flops_at(self, precision: str) -> float:
        """FLOP/s at ``precision``; the fp32 rate stands in for one that was not measured."""
        return self.flops.get(precision, self.flops["fp32"])

    def runs_in(self, asked: str) -> str:
        """Precision of products where ``asked`` is allowed: bf16 only where its rate is the higher one, as ``qkv.ops.precision`` decides."""
        return asked if self.flops_at(asked) > self.flops_at("fp32") else "fp32"

    @property
    def precision(self) -> Literal["fp32", "bf16"]:
        """Precision of products that pays off in training here: bf16 must be clearly faster, because it rounds."""
        return "bf16" if self.flops_at("bf16") > 1.3 * self.flops_at("fp32") else "fp32"


def physical_memory() -> int | None:
    """Bytes of memory that the machine has; None if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def usable_memory() -> int | None:
    """Bytes of memory that this process may take: those of the machine, but no more than its container allows; None if nobody says."""
    return min((size for size in (physical_memory(), memory_limit()) if size is not None), default=None)


def fits_memory(needed: int) -> bool:
    """True if a training that takes so many bytes leaves a quarter of the memory to the program itself and to others."""
    most = usable_memory()
    return most is None or needed <= 0.75 * most


def machine_file() -> Path:
    """``machine.json`` in the user's cache, or in the folder that the environment variable QKV_CACHE names."""
    return cache_folder() / "machine.json"


def stored_machine() -> Machine | None:
    """The stored figures; None if there are none, if they cannot be read, or if they belong to another processor or other settings of it."""
    try:
        stored = json.loads(machine_file().read_text())
        limits = stored.pop("settings", {})
        machine = Machine(**stored)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return machine if (machine.processor, limits) == (processor_name(), settings()) else None


def store_machine(machine: Machine) -> Path:
    """Write the figures whole or not at all; the file's path. Raises OSError if the cache cannot be written."""
    path = machine_file()
    replace_text(path, json.dumps({**asdict(machine), "settings": settings()}, indent=1))
    return path
