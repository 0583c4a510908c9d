"""Every schedule against its formula, written again from the papers in numpy over all steps at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.spec.training import Constant, Cosine, InverseSquareRoot, LinearDecay, Schedule, WarmupStableDecay
from qkv.system.errors import UserError
from qkv.training.optim.schedules import multiplier, same_so_far


def curve(schedule: Schedule, steps: int, width: int = 128) -> np.ndarray:
    return np.array([multiplier(schedule, s, steps, width) for s in range(1, steps + 1)])


def warmed(steps: int, warmup: int, after: np.ndarray) -> np.ndarray:
    s = np.arange(1, steps + 1)
    return np.where(s <= warmup, s / max(warmup, 1), after)


def shares(steps: int, start: int) -> np.ndarray:
    return (np.arange(1, steps + 1) - start) / max(1, steps - start)


@given(st.integers(1, 5000), st.sampled_from([64, 512, 1000]))
def test_inverse_square_root_is_the_papers_formula(warmup: int, width: int) -> None:
    s = np.arange(1, 301, dtype=np.float64)
    expected = width**-0.5 * np.minimum(s**-0.5, s * float(warmup) ** -1.5)
    np.testing.assert_allclose(curve(InverseSquareRoot(warmup=warmup), 300, width), expected, rtol=1e-12)


def test_inverse_square_root_reproduces_the_base_models_peak_rate() -> None:
    # D = 512 and 4,000 steps of warm-up: the rate that "Attention is all you need" reached, about 7e-4.
    assert multiplier(InverseSquareRoot(), 4000, 100_000, 512) == pytest.approx(512**-0.5 * 4000**-0.5)
    assert round(multiplier(InverseSquareRoot(), 4000, 100_000, 512), 6) == 0.000699


@given(st.integers(0, 90), st.floats(0, 1))
def test_cosine(warmup: int, final: float) -> None:
    expected = warmed(100, warmup, final + (1 - final) / 2 * (1 + np.cos(np.pi * shares(100, warmup))))
    np.testing.assert_allclose(curve(Cosine(warmup=warmup, final=final), 100), expected, rtol=1e-12, atol=1e-15)


@given(st.integers(0, 90), st.floats(0, 1))
def test_linear(warmup: int, final: float) -> None:
    p = shares(100, warmup)
    np.testing.assert_allclose(
        curve(LinearDecay(warmup=warmup, final=final), 100), warmed(100, warmup, (1 - p) + final * p), atol=1e-12
    )


def test_warmup_stable_decay() -> None:
    s = np.arange(1, 101)
    expected = np.where(s <= 10, s / 10, np.where(s <= 75, 1, 1 - 0.9 * (s - 75) / 25))
    np.testing.assert_allclose(curve(WarmupStableDecay(warmup=10, decay=0.25, final=0.1), 100), expected, atol=1e-12)


def test_constant_rises_and_stays() -> None:
    np.testing.assert_allclose(curve(Constant(warmup=4), 8), [0.25, 0.5, 0.75, 1, 1, 1, 1, 1])
    np.testing.assert_allclose(curve(Constant(), 3), [1, 1, 1])


@pytest.mark.parametrize(
    "schedule", [Constant(warmup=500), Cosine(warmup=500), LinearDecay(warmup=500), WarmupStableDecay(warmup=500)]
)
def test_a_warm_up_longer_than_the_run_only_rises(schedule: Schedule) -> None:
    np.testing.assert_allclose(curve(schedule, 100), np.arange(1, 101) / 500)


def test_more_steps_are_well_defined_where_the_past_stays_the_same() -> None:
    assert same_so_far(Constant(warmup=10), 100, 100, 400, 64)
    assert same_so_far(InverseSquareRoot(), 100, 100, 400, 64)
    assert same_so_far(Cosine(warmup=50), 50, 100, 400, 64)
    assert not same_so_far(Cosine(warmup=50), 51, 100, 400, 64)
    assert same_so_far(WarmupStableDecay(decay=0.2), 80, 100, 400, 64)
    assert not same_so_far(WarmupStableDecay(decay=0.2), 81, 100, 400, 64)


def test_a_schedule_without_a_formula_is_named() -> None:
    class Secret(Schedule):
        pass

    with pytest.raises(UserError, match=r"mark it with @implements\(Secret\)"):
        multiplier(Secret(), 1, 1, 1)
