"""Loss spikes: a loss far above those of the steps before it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

WINDOW, FEWEST = 50, 20
"""Number of losses that a loss is compared with, and their minimum."""
DEVIATIONS, RISE = 8.0, 0.1
"""A spike exceeds the median of these losses by this many robust standard deviations, and by this share of the median.
A robust standard deviation is 1.4826 times the median absolute deviation; Iglewicz & Hoaglin (1993) call values beyond
3.5 of them outliers, and losses of batches have heavier tails.
"""
LONGEST = 10
"""Maximum number of steps of a spike in a row; after them, the losses count as the new level."""


def spike_limit(losses: Sequence[float]) -> float:
    """Return the loss above which the next step is a spike, median + max(8 · 1.4826 · MAD, median / 10) of the last
    ``WINDOW`` of ``losses``; infinity if there are fewer than ``FEWEST``.
    """
    recent = losses[-WINDOW:]
    if len(recent) < FEWEST:
        return math.inf
    middle = statistics.median(recent)
    spread = 1.4826 * statistics.median(abs(loss - middle) for loss in recent)
    return middle + max(DEVIATIONS * spread, RISE * abs(middle))


class SpikeDetector:
    """Detector that reads the losses of a run in order. Its state, ``recent`` and ``length``, is plain data."""

    def __init__(self, recent: Sequence[float] = (), length: int = 0):
        """``recent``: last losses that are no spikes.   ``length``: number of steps of the spike so far."""
        self.recent, self.length = list(recent[-WINDOW:]), length

    def limit(self) -> float:
        """Return the loss above which the next step is a spike."""
        return spike_limit(self.recent)

    def read(self, loss: float) -> bool:
        """Return True if ``loss``, of the next step, is a spike. After ``LONGEST`` of them it is a new level."""
        if loss > self.limit() and self.length < LONGEST:
            self.length += 1
            return True
        if self.length >= LONGEST:
            self.recent = []
        self.length = 0
        self.recent = [*self.recent, loss][-WINDOW:]
        return False


def find_spikes(steps: Sequence[int], losses: Sequence[float]) -> list[tuple[int, float, float]]:
    """Return (step, loss, limit) of each spike; rises that last longer than ``LONGEST`` steps are none."""
    detector, spikes, open_spike = SpikeDetector(), list[tuple[int, float, float]](), list[tuple[int, float, float]]()
    for step, loss in zip(steps, losses, strict=True):
        limit = detector.limit()
        if detector.read(loss):
            open_spike.append((step, loss, limit))
            continue
        if len(open_spike) < LONGEST:
            spikes += open_spike
        open_spike = []
    return spikes + (open_spike if len(open_spike) < LONGEST else [])
