"""Scaling law: loss as a function of the number of parameters and tokens. Fit, bootstrap, extrapolation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

COVERAGE = 0.9
"""Coverage of the intervals of extrapolated losses."""
RESAMPLES = 300
LEAST = 6
"""Minimum number of points of a fit: one more than the law has parameters."""
_STARTS = [(share, exponent) for share in (0.05, 0.5, 0.9) for exponent in (0.2, 0.6)]


class LossPoint(NamedTuple):
    """Loss of a model with ``parameters`` parameters after training on ``tokens`` tokens."""

    parameters: float
    tokens: float
    loss: float


class Law(NamedTuple):
    """Scaling law L(N, D) = E + A N^-α + B D^-β for N parameters and D tokens (Hoffmann et al. 2022, equation 2). The
    fields are E, A, α, B, β in this order.
    """

    irreducible: float
    size_factor: float
    size_exponent: float
    data_factor: float
    data_exponent: float

    def loss(self, parameters: float, tokens: float) -> float:
        """Predict the loss, in the unit of the losses to which the law was fitted."""
        size = self.size_factor * parameters**-self.size_exponent
        return self.irreducible + size + self.data_factor * tokens**-self.data_exponent


class Extrapolation(NamedTuple):
    """Loss predicted for some number of parameters and tokens, with its 90 % prediction interval for a new run."""

    parameters: float
    tokens: float
    loss: float
    low: float
    high: float


class FittedLaw(NamedTuple):
    """Law fitted to losses. ``ranges``: 90 % interval of each of its parameters; ``error``: standard deviation of log
    L; ``resampled``: laws fitted to bootstrap samples; ``residuals``: of log L, enlarged as ``fitted_law`` says.
    """

    law: Law
    ranges: tuple[tuple[float, float], ...]
    error: float
    resampled: tuple[Law, ...]
    residuals: tuple[float, ...]

    def extrapolated(self, parameters: float, tokens: float) -> Extrapolation:
        """Predict the loss of a new run. Its interval comes from the bootstrap: the loss of each resampled law, with a
        random residual added to log L.
        """
        rng = np.random.default_rng(0)
        drawn = rng.choice(self.residuals, len(self.resampled))
        losses = np.array([law.loss(parameters, tokens) for law in self.resampled]) * np.exp(drawn)
        low, high = _interval(losses)
        return Extrapolation(parameters, tokens, self.law.loss(parameters, tokens), low, high)


def fitted_law(points: Sequence[LossPoint]) -> FittedLaw:
    """Fit the law to ``points`` by least squares of log L with Huber's loss, and bootstrap the fit with its residuals.

    Residuals are enlarged by √(n / (n - 5)), because five parameters are fitted to n points. Raises ``ValueError`` for
    fewer than ``LEAST`` points, or fewer than two sizes or two numbers of tokens.
    """
    if len(points) < LEAST or len({p.parameters for p in points}) < 2 or len({p.tokens for p in points}) < 2:
        raise ValueError(
            f"the fit of a scaling law needs at least {LEAST} losses, of several sizes and training lengths"
        )
    sizes, tokens, losses = (np.array(column, float) for column in zip(*points, strict=True))
    law, predicted = _best(sizes, tokens, np.log(losses), None)
    residuals = (np.log(losses) - predicted) * np.sqrt(len(points) / (len(points) - 5))
    rng = np.random.default_rng(0)
    resampled = []
    for _ in range(RESAMPLES):
        noisy = predicted + rng.choice(residuals, len(points))
        resampled.append(_best(sizes, tokens, noisy, law)[0])
    ranges = tuple(_interval(np.array(column)) for column in zip(*resampled, strict=True))
    return FittedLaw(law, ranges, float(residuals.std()), tuple(resampled), tuple(residuals.tolist()))


class _Logarithms(NamedTuple):
    """Logarithms of sizes, tokens and losses. Those of sizes and tokens are centred by their means n0 and d0, so that
    the parameters of a law are of order one.

    The parameters are theta = (log E, log A', α, log B', β), with log A' = log A - α n0 and log B' = log B - β d0.
    """

    sizes: np.ndarray
    tokens: np.ndarray
    losses: np.ndarray
    n0: float
    d0: float

    def terms(self, theta: np.ndarray) -> np.ndarray:
        e, a, alpha, b, beta = theta
        return np.stack((np.full_like(self.sizes, e), a - alpha * self.sizes, b - beta * self.tokens))

    def predicted(self, theta: np.ndarray) -> np.ndarray:
        return np.logaddexp.reduce(self.terms(theta))

    def slopes(self, theta: np.ndarray) -> np.ndarray:
        e, a, b = np.exp(self.terms(theta) - self.predicted(theta))
        return np.stack((e, a, -self.sizes * a, b, -self.tokens * b), 1)

    def theta(self, law: Law) -> list[float]:
        e, a, alpha, b, beta = law
        return [np.log(e), np.log(a) - alpha * self.n0, alpha, np.log(b) - beta * self.d0, beta]

    def law(self, theta: np.ndarray) -> Law:
        e, a, alpha, b, beta = map(float, theta)
        return Law(np.exp(e), np.exp(a + alpha * self.n0), alpha, np.exp(b + beta * self.d0), beta)

    def starts(self) -> list[list[float]]:
        least = self.losses.min()
        rest = [(np.log(share), np.log((1 - share) / 2), power) for share, power in _STARTS]
        return [[least + e, least + half, power, least + half, power] for e, half, power in rest]


def _best(sizes: np.ndarray, tokens: np.ndarray, logs: np.ndarray, near: Law | None) -> tuple[Law, np.ndarray]:
    """Fit a law to log losses ``logs``, starting from several initial values, or only from ``near`` if given; return
    (law with the least error, its log L at the points).
    """
    from scipy.optimize import least_squares

    n0, d0 = float(np.log(sizes).mean()), float(np.log(tokens).mean())
    points = _Logarithms(np.log(sizes) - n0, np.log(tokens) - d0, logs, n0, d0)
    bounds = ([-30, -30, 0.01, -30, 0.01], [30, 30, 3, 30, 3])
    runs = [
        least_squares(
            lambda theta: points.predicted(theta) - logs,
            np.clip(start, *bounds),
            points.slopes,  # pyright: ignore[reportArgumentType]  # the stubs know names of methods only
            bounds=bounds,
            loss="huber",
            f_scale=0.02,
        )
        for start in (points.starts() if near is None else [points.theta(near)])
    ]
    best = min(runs, key=lambda run: run.cost).x
    return points.law(best), points.predicted(best)


def _interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high)
