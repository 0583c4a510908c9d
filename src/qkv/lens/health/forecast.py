"""Expected final loss of a run from its first part: a power law in the number of steps, with an interval."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

COVERAGE = 0.9
"""Probability with which an interval covers the final loss if the law holds."""
PART = 0.1
"""Share of a run after which its final loss is forecast."""
_FEWEST = 20
"""Minimum number of losses for a forecast."""
_BINS = 24
_EXPONENTS = np.linspace(0.05, 1.5, 30)


@dataclass(frozen=True)
class ExpectedLoss:
    """Loss expected after ``steps`` steps from those of the first ``read`` steps, and the interval of the fit, which
    covers it with probability ``COVERAGE`` if the law holds.
    """

    read: int
    steps: int
    loss: float
    low: float
    high: float


def forecast(losses: Sequence[float], steps: int) -> ExpectedLoss | None:
    """Forecast the loss after ``steps`` steps from ``losses``, those of the first steps; None if they are too few.

    The law L(s) = E + A s^-b (Hestness et al. 2017) is fitted to means of the losses over ranges of steps of equal
    ratio, for each of several exponents b, with A ≥ 0 and 0 ≤ E ≤ the least mean. The forecasts of the exponents are
    weighted by their likelihood under the residuals of the best one, and the interval is enlarged by these residuals.
    A falling learning rate and jumps that come later, as when a model finds a pattern, are not in the law: a forecast
    is what the first part of the run says, and no promise.
    """
    values = np.asarray([loss for loss in losses if np.isfinite(loss)], float)
    if len(values) < _FEWEST or steps <= len(values):
        return None
    at, means, counts = _binned(values)
    fits = [_fit(at, means, counts, b) for b in _EXPONENTS]
    errors = np.array([error for _, _, error in fits])
    freedom = max(1, len(at) - 3)
    variance = max(errors.min() / freedom, 1e-12)
    weights = np.exp(-(errors - errors.min()) / (2 * variance))
    finals = np.array([e + a * steps**-b for (e, a, _), b in zip(fits, _EXPONENTS, strict=True)])
    noise = float(np.sqrt(variance / counts.mean()))
    low, middle, high = _quantiles(finals, weights)
    margin = 1.645 * noise
    least = 0.0 if values.min() >= 0 else -np.inf  # only densities have negative losses
    low, high = max(least, min(low, middle) - margin), max(high, middle) + margin
    return ExpectedLoss(len(values), steps, middle, low, high)


def _binned(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (mean step, mean loss, number of losses) of ranges of steps; the first fifth, the warm-up, is left out."""
    steps = np.arange(1, len(values) + 1)
    start = len(values) // 5
    edges = np.unique(np.geomspace(start + 1, len(values) + 1, _BINS + 1).round().astype(int))
    ranges = [(a - 1, b - 1) for a, b in itertools.pairwise(edges) if b > a]
    at = np.array([steps[a:b].mean() for a, b in ranges])
    means = np.array([values[a:b].mean() for a, b in ranges])
    return at, means, np.array([float(b - a) for a, b in ranges])


def _fit(at: np.ndarray, means: np.ndarray, counts: np.ndarray, b: float) -> tuple[float, float, float]:
    """Fit E and A for an exponent b by weighted least squares; return (E, A, weighted sum of squared residuals)."""
    x = at**-b
    design = np.stack((np.ones_like(x), x), 1) * np.sqrt(counts)[:, None]
    e, a = np.linalg.lstsq(design, means * np.sqrt(counts), rcond=None)[0]
    if a < 0:
        e, a = float(np.average(means, weights=counts)), 0.0
    if e < 0:
        e, a = 0.0, float((counts * means * x).sum() / (counts * x * x).sum())
    residuals = means - e - a * x
    return float(e), float(a), float((counts * residuals**2).sum())


def _quantiles(values: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
    """Return the weighted quantiles of ``values`` at the borders of the interval, and the mean between them."""
    order = np.argsort(values)
    shares = np.cumsum(weights[order]) / weights.sum()
    tail = (1 - COVERAGE) / 2
    low, high = (float(values[order][np.searchsorted(shares, q).clip(0, len(values) - 1)]) for q in (tail, 1 - tail))
    return low, float(np.average(values, weights=weights)), high
