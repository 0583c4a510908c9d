"""Scaling law: recovered parameters, coverage of extrapolated losses, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from qkv.comparison import law
from qkv.comparison.law import Law, LossPoint, fitted_law

KNOWN = Law(1.2, 40.0, 0.4, 300.0, 0.5)


def points(error: float, seed: int = 0) -> list[LossPoint]:
    rng = np.random.default_rng(seed)
    grid = [(5e4 * 2**i, 5e5 * 2**j) for i in range(4) for j in range(3)]
    return [LossPoint(n, d, KNOWN.loss(n, d) * float(np.exp(error * rng.standard_normal()))) for n, d in grid]


def test_losses_of_a_law_give_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(law, "RESAMPLES", 3)
    found = fitted_law(points(0.0))
    assert found.law.size_exponent == pytest.approx(KNOWN.size_exponent, rel=0.02)
    assert found.law.data_exponent == pytest.approx(KNOWN.data_exponent, rel=0.02)
    assert found.law.irreducible == pytest.approx(KNOWN.irreducible, rel=0.02)
    assert found.extrapolated(8e5, 4e6).loss == pytest.approx(KNOWN.loss(8e5, 4e6), rel=1e-3)


@pytest.mark.slow
def test_intervals_hold_new_losses_as_often_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 experiments with 1 % of noise, 11 are expected; fewer than 7 have a probability of 0.05 %."""
    monkeypatch.setattr(law, "RESAMPLES", 25)
    inside = 0
    for seed in range(12):
        new = KNOWN.loss(8e5, 4e6) * float(np.exp(0.01 * np.random.default_rng(1000 + seed).standard_normal()))
        found = fitted_law(points(0.01, seed)).extrapolated(8e5, 4e6)
        inside += found.low <= new <= found.high
        assert found.low < found.high
    assert inside >= 7


def test_too_few_losses_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 6 losses"):
        fitted_law(points(0.01)[:5])
