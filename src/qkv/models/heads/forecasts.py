"""Kinds of forecasts: losses, point forecasts, quantiles and CRPS of outputs (…, Q) for future values y (…).

Every kind is a location–scale family: ``restored`` converts outputs for normalised values x to outputs for shift +
scale · x.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.spec.models import forecasts as spec
from qkv.spec.register import implementation, implements

LEVELS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Levels of the quantiles that are computed of a distribution."""
_NORMAL = 50.0
"""Maximum of ν - 4 when degrees of freedom ν are fitted to errors; above it, Student's t is nearly normal."""
_LEAST = 1e-4
"""Minimum scale of a distribution, relative to the scale of the window."""


class Forecast(ABC):
    """Base class of the kinds of forecasts."""

    levels: Sequence[float] = ()
    """Levels of the predicted quantiles; empty for a point forecast."""
    locations: int = 1
    """Number of leading outputs that are locations, in units of the values; others are scale or shape parameters."""

    def __init__(self, part: Any):
        self.part = part

    @abstractmethod
    def restored(self, outputs: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """Convert raw outputs (…, Q) for normalised values x to outputs for shift + scale · x; shift and scale (…)."""

    @abstractmethod
    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss (…) of denormalised outputs (…, Q) for each value y (…)."""

    @abstractmethod
    def point(self, outputs: Tensor) -> Tensor:
        """Return the point forecast (…) of denormalised outputs: mean or median."""

    def quantiles(self, outputs: Tensor) -> Tensor:
        """Return the quantiles (…, levels) of denormalised outputs."""
        return outputs[..., :0]

    @abstractmethod
    def around(self, errors: Tensor) -> Tensor:
        """Return raw outputs (H, Q) that describe the distribution of ``errors`` (N, H) around a point forecast of 0;
        NaN is ignored.

        Added to the locations of another point forecast, they give it prediction intervals without changing the
        forecast.
        """


@implements(spec.Point)
class Point(Forecast):
    """Point forecast: one number for each value."""

    part: spec.Point

    def restored(self, outputs: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return shift[..., None] + scale[..., None] * outputs

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        error = outputs[..., 0] - y
        return error.square() if self.part.loss == "squared" else error.abs()

    def point(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0]

    def around(self, errors: Tensor) -> Tensor:
        return errors.new_zeros(errors.shape[1], 1)


@implements(spec.Quantiles)
class Quantiles(Forecast):
    """Quantiles at the levels of the spec."""

    part: spec.Quantiles

    def __init__(self, part: spec.Quantiles):
        super().__init__(part)
        self.levels, self.locations = part.levels, len(part.levels)

    def restored(self, outputs: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return shift[..., None] + scale[..., None] * outputs

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return pinball(outputs, y, self.levels).mean(-1)

    def point(self, outputs: Tensor) -> Tensor:
        return self.quantiles(outputs)[..., self._middle]

    @property
    def _middle(self) -> int:
        """Index of the level that is nearest to 0.5."""
        return min(range(len(self.levels)), key=lambda i: abs(self.levels[i] - 0.5))

    def quantiles(self, outputs: Tensor) -> Tensor:
        return outputs.sort(-1).values

    def around(self, errors: Tensor) -> Tensor:
        levels = torch.tensor(self.levels, dtype=errors.dtype, device=errors.device)
        quantiles = errors.nanquantile(levels, 0).nan_to_num().T.contiguous()
        quantiles[:, : self._middle].clamp_(max=0.0)
        quantiles[:, self._middle] = 0.0
        quantiles[:, self._middle + 1 :].clamp_(min=0.0)
        return quantiles


class _Distribution(Forecast):
    """Distribution with outputs (location, raw scale, …)."""

    levels = LEVELS

    def restored(self, outputs: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        location = shift + scale * outputs[..., 0]
        deviation = scale * positive(outputs[..., 1])
        freedom = (F.softplus(each) + 2.01 for each in outputs[..., 2:].unbind(-1))
        return torch.stack((location, deviation, *freedom), -1)

    def point(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0]

    def quantiles(self, outputs: Tensor) -> Tensor:
        location, deviation = outputs[..., 0:1], outputs[..., 1:2]
        return location + deviation * self.standard(outputs)

    def around(self, errors: Tensor) -> Tensor:
        variance = errors.square().nanmean(0).nan_to_num()
        offsets = [torch.zeros_like(variance)]
        for value, least in zip(self.shape(errors, variance), (_LEAST, 2.01), strict=False):
            above = (value - least).clamp(min=1e-6)
            offsets.append(above + torch.log(-torch.expm1(-above)))  # inverse of softplus
        return torch.stack(offsets, -1)

    def shape(self, errors: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        """Fit the scale (H) and any further parameters to errors (N, H) around 0; variance (H): mean squared errors."""
        return (variance.sqrt(),)

    def standard(self, outputs: Tensor) -> Tensor:
        """Compute quantiles of the standardised distribution, (levels,) or (…, levels)."""
        levels = torch.tensor(self.levels, dtype=outputs.dtype, device=outputs.device)
        return math.sqrt(2) * torch.erfinv(2 * levels - 1)


@implements(spec.Gaussian)
class Gaussian(_Distribution):
    """Normal distribution: outputs (μ, σ)."""

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return gaussian_nats(outputs[..., 0], outputs[..., 1], y)


@implements(spec.StudentT)
class StudentT(_Distribution):
    """Student's t distribution: outputs (μ, σ, ν)."""

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        location, scale, nu = outputs.unbind(-1)
        z = (y - location) / scale
        normaliser = torch.lgamma(nu / 2) - torch.lgamma((nu + 1) / 2) + (nu * math.pi).log() / 2 + scale.log()
        return normaliser + (nu + 1) / 2 * torch.log1p(z.square() / nu)

    def shape(self, errors: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        """Fit scale and degrees of freedom by the method of moments: an excess kurtosis k gives ν = 4 + 6/k."""
        excess = errors.pow(4).nanmean(0).nan_to_num() / variance.square().clamp(min=1e-12) - 3
        nu = 4 + 6 / excess.clamp(min=6 / _NORMAL)
        return (variance * (nu - 2) / nu).sqrt(), nu

    def standard(self, outputs: Tensor) -> Tensor:
        """Compute quantiles from normal quantiles by Hill's expansion (1970), to 1e-2 for ν > 2 at the levels used."""
        z, nu = super().standard(outputs), outputs[..., 2:3]
        terms = (
            (z**3 + z) / 4,
            (5 * z**5 + 16 * z**3 + 3 * z) / 96,
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
        )
        return z + sum(term / nu ** (i + 1) for i, term in enumerate(terms))


def positive(raw: Tensor) -> Tensor:
    """Map a raw output to a scale > 0 of a distribution."""
    return F.softplus(raw) + _LEAST


def gaussian_nats(mean: Tensor, deviation: Tensor, y: Tensor) -> Tensor:
    """Return -log N(y; mean, deviation²) in nats."""
    z = (y - mean) / deviation
    return z.square() / 2 + deviation.log() + math.log(2 * math.pi) / 2


def pinball(quantiles: Tensor, y: Tensor, levels: Sequence[float]) -> Tensor:
    """Return pinball losses 2 max(τ (y - q), (τ - 1) (y - q)), (…, levels), of quantiles (…, levels) for y (…)."""
    error = y[..., None] - quantiles
    level = torch.tensor(levels, dtype=quantiles.dtype, device=quantiles.device)
    return 2 * torch.maximum(level * error, (level - 1) * error)


def crps(quantiles: Tensor, y: Tensor, levels: Sequence[float]) -> Tensor:
    """Approximate the CRPS (…), ∫ pinball(τ) dτ, from quantiles; each level is weighted by its share of (0, 1)."""
    between = [0.0, *((a + b) / 2 for a, b in pairwise(levels)), 1.0]
    shares = torch.tensor([b - a for a, b in pairwise(between)], dtype=quantiles.dtype)
    return (pinball(quantiles, y, levels) * shares.to(quantiles.device)).sum(-1)


def build_forecast(part: spec.Forecast) -> Forecast:
    """Build the kind of forecast that ``part`` describes."""
    return implementation(part, "qkv.models")(part)
