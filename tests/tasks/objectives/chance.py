"""Tests that draws follow their distribution. The tests' seeds are fixed, so the answer never changes by chance."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def chi_square(observed: Sequence[int] | np.ndarray, expected: Sequence[float] | np.ndarray) -> float:
    """Pearson's χ² as a standard normal (Wilson & Hilferty 1931); above 4 has a probability below 1 in 30 000.

    ``expected`` are probabilities.
    """
    seen, wanted = np.asarray(observed, float), np.asarray(expected, float)
    wanted = wanted / wanted.sum() * seen.sum()
    assert wanted.min() >= 5, "too few draws for a statement"
    free = len(seen) - 1
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    return float(((statistic / free) ** (1 / 3) - 1 + 2 / (9 * free)) / math.sqrt(2 / (9 * free)))


def assert_distributed(observed: Sequence[int] | np.ndarray, expected: Sequence[float] | np.ndarray) -> None:
    assert chi_square(observed, expected) < 4


def assert_share(hits: int, of: int, probability: float) -> None:
    """``hits`` of ``of`` independent draws, each with ``probability``."""
    assert_distributed([hits, of - hits], [probability, 1 - probability])
