"""Signals along time: ``TimedSignal``, values with their times, and ``MaskedSignal``, sounds with hidden positions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from qkv.layers.signal import Signal

WINDOW_EPS = 1e-5
"""Epsilon added to the variance of a window of a series in its standardisation."""


@dataclass(frozen=True)
class TimedSignal(Signal):
    """Windows of series. times (B or 1, N): real-valued time of each value, for unevenly spaced values."""

    times: Tensor | None = None


@dataclass(frozen=True)
class MaskedSignal(Signal):
    """Sounds. masked (B, N): True at positions whose vector the front end replaces by a learned one."""

    masked: Tensor | None = None
