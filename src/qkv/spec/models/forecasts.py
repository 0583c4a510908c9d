"""Specs of the forms of a forecast: a point, quantiles, or a distribution for each future value."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from qkv.spec.base import Part, Seq
from qkv.spec.errors import Problem


class Forecast(Part, slot=True):
    """Base class of forms of a forecast, which determine the outputs of the head ``forecast`` and its loss."""

    @property
    def outputs(self) -> int:
        """Number of outputs per future value."""
        return 1


class Point(Forecast, kind="point"):
    """Point forecast f, one number: loss (y - f)², or |y - f|."""

    loss: Literal["squared", "absolute"] = "squared"


class Quantiles(Forecast, kind="quantiles"):
    """Quantiles q_τ at the ``levels`` τ: pinball loss Σ_τ 2 max(τ (y - q_τ), (τ - 1) (y - q_τ)) / number of levels.

    Koenker and Bassett 1978. The mean over evenly spaced levels approximates the CRPS. Predicted quantiles are sorted.
    """

    levels: Seq[Annotated[float, Field(gt=0, lt=1)]] = Field(
        default=(0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
        min_length=1,
        description="levels τ, in rising order",
    )

    @property
    def outputs(self) -> int:
        return len(self.levels)

    def problems(self) -> list[Problem]:
        if all(low < high for low, high in zip(self.levels, self.levels[1:], strict=False)):
            return []
        return [Problem(("levels",), f"{list(self.levels)} given; give each level once, in rising order")]


class Gaussian(Forecast, kind="gaussian"):
    """Normal distribution of mean μ and deviation σ: loss -log p(y) (DeepAR, Salinas et al. 2020)."""

    @property
    def outputs(self) -> int:
        return 2


class StudentT(Forecast, kind="student_t"):
    """Student's t distribution of location μ, scale σ and ν > 2 degrees of freedom: loss -log p(y)."""

    @property
    def outputs(self) -> int:
        return 3
