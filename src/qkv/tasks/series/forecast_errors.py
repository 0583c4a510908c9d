"""Errors of forecasts, summed by channel and step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.models.heads.forecasts import Forecast, crps

COVERAGES = (0.8, 0.9)
"""Nominal coverages of the central prediction intervals that are evaluated."""


class Errors(NamedTuple):
    """Sums over windows, (C, H) for C channels and H steps.

    squared, absolute: errors.   count: number of values.   crps: CRPS; NaN if no quantiles are predicted.
    inside (coverages, C, H): number of values inside the interval of each of ``COVERAGES``; NaN if it is not predicted.
    """

    squared: np.ndarray
    absolute: np.ndarray
    count: np.ndarray
    crps: np.ndarray
    inside: np.ndarray

    def __add__(self, other: Errors) -> Errors:  # type: ignore[override]
        return Errors._make(mine + theirs for mine, theirs in zip(self, other, strict=True))

    def mean(self, name: str, factors: np.ndarray | None = None) -> float:
        """Compute the mean of the error ``name`` over all values; ``factors`` (C): factor of each channel."""
        sums = getattr(self, name)
        weighted = sums if factors is None else sums * factors[:, None]
        return float(weighted.sum() / max(1, self.count.sum()))

    def by_step(self, name: str) -> list[float]:
        """Compute the mean of the error ``name`` for each step of the horizon."""
        return (getattr(self, name).sum(0) / self.count.sum(0).clip(min=1)).tolist()


def errors(point: Tensor, targets: Tensor) -> Errors:
    """Compute the errors of point forecasts (B, C, H) for targets of the same shape; NaN is a missing target."""
    seen = ~targets.isnan()
    error = torch.where(seen, point.double() - targets.nan_to_num().double(), 0)
    squared, absolute, count = (each.sum(0).numpy(force=True) for each in (error.square(), error.abs(), seen.double()))
    nothing = np.full((len(COVERAGES), *squared.shape), np.nan)
    return Errors(squared, absolute, count, nothing[0], nothing)


def errors_of(form: Forecast, outputs: Tensor, targets: Tensor) -> Errors:
    """Compute the errors of denormalised head outputs (B, C, H, Q), with CRPS and coverage if they hold quantiles."""
    result = errors(form.point(outputs), targets)
    if len(form.levels) < 2:
        return result
    seen, values = ~targets.isnan(), targets.nan_to_num().double()
    quantiles = form.quantiles(outputs).double()
    score = torch.where(seen, crps(quantiles, values, form.levels), 0).sum(0)
    inside = [_inside(form, quantiles, values, seen, share) for share in COVERAGES]
    return result._replace(crps=score.numpy(force=True), inside=np.stack(inside))


def interval(form: Forecast, share: float) -> tuple[int, int] | None:
    """Return the indices of the quantiles that enclose the central ``share``; None if they are not predicted."""
    levels = [round(level, 6) for level in form.levels]
    low, high = round((1 - share) / 2, 6), round((1 + share) / 2, 6)
    return (levels.index(low), levels.index(high)) if low in levels and high in levels else None


def _inside(form: Forecast, quantiles: Tensor, y: Tensor, seen: Tensor, share: float) -> np.ndarray:
    ends = interval(form, share)
    if ends is None:
        return np.full(tuple(y.shape[1:]), np.nan)
    low, high = (quantiles[..., i] for i in ends)
    return ((y >= low) & (y <= high) & seen).double().sum(0).numpy(force=True)
