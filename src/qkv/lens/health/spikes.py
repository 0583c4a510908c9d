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
_UPPER, _NORMAL = 0.9, 1.2816
"""Quantile of the upper tail, and its distance from the median of a normal distribution, in standard deviations."""
LONGEST = 10
"""Maximum number of steps of a spike in a row; after them, the losses count as the new level."""


def spike_limit(losses: Sequence[float]) -> float:
    """Return the loss above which the next step is a spike, median + max(8 · spread, median / 10) of the last
    ``WINDOW`` of ``losses``; infinity if there are fewer than ``FEWEST``.

    spread: max(1.4826 · MAD, distance of the upper decile / 1.2816). Positive losses are skewed to the right, above all
    where batches are changed at random, so that the limit in logarithms counts if it is higher.
    """
    recent = losses[-WINDOW:]
    if len(recent) < FEWEST:
        return math.inf
    middle, spread = _level(recent)
    limit = middle + max(DEVIATIONS * spread, RISE * abs(middle))
    if not all(loss > 0 for loss in recent):
        return limit
    middle, spread = _level([math.log(loss) for loss in recent])
    return max(limit, math.exp(min(middle + DEVIATIONS * spread, _LARGEST)))


_LARGEST = 700.0
"""Largest logarithm of a limit."""


def _level(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and a robust standard deviation, which the upper tail may widen."""
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return middle, max(spread, (sorted(values)[int(_UPPER * len(values))] - middle) / _NORMAL)


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
