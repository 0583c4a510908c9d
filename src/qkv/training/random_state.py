"""States of all random generators as tensors, and a separate seed for each step, so that no step depends on earlier
ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


def capture() -> dict[str, Tensor]:
    """Return the states of the global random generators of Python, numpy and torch, as tensors."""
    _, words, spare = random.getstate()
    _, keys, position, has_spare, gauss = np.random.get_state(legacy=True)
    states = {
        "python": torch.tensor(words, dtype=torch.int64),
        "python_spare": torch.tensor([] if spare is None else [spare], dtype=torch.float64),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy_position": torch.tensor([position, has_spare], dtype=torch.int64),
        "numpy_spare": torch.tensor([gauss], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states |= {f"cuda_{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def restore(saved: Mapping[str, Tensor]) -> None:
    """Restore the generator states saved by ``capture``."""
    spare = saved["python_spare"].tolist()
    random.setstate((3, tuple(saved["python"].tolist()), spare[0] if spare else None))
    position, has_spare = saved["numpy_position"].tolist()
    np.random.set_state(
        ("MT19937", saved["numpy"].numpy().astype(np.uint32), position, has_spare, saved["numpy_spare"].item())
    )
    torch.set_rng_state(saved["torch"].clone())
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            if f"cuda_{i}" in saved:
                torch.cuda.set_rng_state(saved[f"cuda_{i}"].clone(), i)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Return a context manager that seeds the global random generators with ``seed`` and restores the caller's states
    on exit.
    """
    before = capture()
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)
    try:
        yield
    finally:
        restore(before)


def seed_step(seed: int, step: int, device: torch.device) -> None:
    """Seed torch's generators for one update; the seed depends only on (seed, step)."""
    _seed(mix(seed, step), device)


def seed_process(index: int, device: torch.device) -> None:
    """Seed torch's generators again, for process ``index`` of an update; the first process keeps its random numbers."""
    if index:
        _seed(mix(torch.initial_seed(), index), device)


def _seed(number: int, device: torch.device) -> None:
    # Not torch.manual_seed, which queries every device type and takes 0.1 ms.
    torch.default_generator.manual_seed(number)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)


def mix(seed: int, step: int) -> int:
    """Return a hash of (seed, step) with 63 bits, made with the finaliser of SplitMix64 (Steele et al. 2014): each
    output bit depends on all input bits.
    """
    z = (seed * 0x9E3779B97F4A7C15 + step + 1) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (z ^ (z >> 31)) >> 1
