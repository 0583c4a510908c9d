"""Statistics of results over seeds: Student's t distribution, intervals of means, paired tests, Holm's correction."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.95
"""Coverage of intervals."""
_TERMS, _PRECISION, _TINY = 400, 1e-15, 1e-300


class Estimate(NamedTuple):
    """Mean of a sample, and half the width of its interval of ``LEVEL``; None for a single value."""

    mean: float
    half: float | None


def estimate(values: Sequence[float]) -> Estimate:
    """Mean of ``values`` with its interval by the t distribution."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, None)
    return Estimate(mean, t_quantile((1 + LEVEL) / 2, len(values) - 1) * _error(values))


def paired_p(differences: Sequence[float]) -> float | None:
    """Two-sided p value of the t test that the mean of paired ``differences`` is 0; None for fewer than two.

    Differences that are all equal give 0, or 1 if they are 0.
    """
    if len(differences) < 2:
        return None
    mean, error = statistics.fmean(differences), _error(differences)
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return t_outside(mean / error, len(differences) - 1)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p values corrected for their number by Holm's method (1979): (m - i) p_i for the i-th smallest from 0, made
    ascending and at most 1.
    """
    corrected, largest = dict[str, float](), 0.0
    for i, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - i) * p_values[name]))
        corrected[name] = largest
    return {name: corrected[name] for name in p_values}


def t_outside(t: float, freedom: int) -> float:
    """P(|T| >= |t|) for Student's t distribution with ``freedom`` degrees of freedom: I_x(n/2, 1/2), x = n/(n + t²)."""
    return _beta_ratio(freedom / (freedom + t * t), freedom / 2, 0.5)


def t_quantile(probability: float, freedom: int) -> float:
    """Value that Student's t distribution with ``freedom`` degrees of freedom exceeds with 1 - ``probability``, which
    is above one half.
    """
    outside, low, high = 2 * (1 - probability), 0.0, 1.0
    while t_outside(high, freedom) > outside:
        high *= 2
    return _root(lambda t: t_outside(t, freedom) - outside, low, high)


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Root of a falling function in an interval, by bisection."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean."""
    return statistics.stdev(values) / math.sqrt(len(values))


def _beta_ratio(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0 or x >= 1:
        return min(1.0, max(0.0, x))
    if x > (a + 1) / (a + b + 2):  # where the other fraction converges faster
        return 1 - _beta_ratio(1 - x, b, a)
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """Continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d or _TINY)
            c = 1 + term / c or _TINY
            value *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return value
