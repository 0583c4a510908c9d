"""Statistics of results over seeds: Student's t distribution, intervals of means, paired tests, Holm's correction."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.95
"""Coverage of confidence intervals."""


class Estimate(NamedTuple):
    """Mean of a sample, and half the width of its confidence interval at ``LEVEL``; None for a single value."""

    mean: float
    half: float | None


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate the mean of ``values`` with its confidence interval by the t distribution."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, None)
    return Estimate(mean, t_quantile((1 + LEVEL) / 2, len(values) - 1) * _error(values))


def paired_p(differences: Sequence[float]) -> float | None:
    """Compute the two-sided p value of the t test of the hypothesis that the mean of paired ``differences`` is 0; None
    for fewer than two differences.

    If all differences are equal, the value is 0, or 1 if they are 0.
    """
    if len(differences) < 2:
        return None
    mean, error = statistics.fmean(differences), _error(differences)
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return t_outside(mean / error, len(differences) - 1)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Correct p values for multiple testing by Holm's method (1979): (m - i) p_i for the i-th smallest of m, with i
    from 0, made ascending and at most 1.
    """
    corrected, largest = dict[str, float](), 0.0
    for i, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - i) * p_values[name]))
        corrected[name] = largest
    return {name: corrected[name] for name in p_values}


def t_outside(t: float, freedom: int) -> float:
    """Return P(|T| >= |t|) for Student's t distribution with ``freedom`` degrees of freedom."""
    from scipy.special import stdtr  # imported here because the import is slow

    return 2 * float(stdtr(freedom, -abs(t)))


def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t with ``freedom`` degrees of freedom: the value below which a fraction
    ``probability`` lies.
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def _error(values: Sequence[float]) -> float:
    """Return the standard error of the mean."""
    return statistics.stdev(values) / math.sqrt(len(values))
