"""Axes: round ticks inside, in order, told apart by their labels."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.report.charts.scale import LARGEST, AxisScale, drawable, labels

SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
finite = st.floats(-1e100, 1e100, allow_nan=False)
positive = st.floats(1e-100, 1e100, allow_nan=False)
common = st.floats(-1e7, 1e7, allow_nan=False)


def parsed(label: str) -> float:
    number = label.replace(",", "")
    return float(number[:-1]) * SUFFIXES[number[-1]] if number[-1] in SUFFIXES else float(number)


@given(st.lists(finite | common, min_size=1, max_size=5), st.integers(2, 10), st.booleans())
def test_linear_ticks_are_round_rising_and_inside(values: list[float], count: int, zero: bool) -> None:
    scale = AxisScale.over(values, pad=0.05, zero=zero)
    ticks = scale.ticks(count)
    assert scale.low < scale.high
    assert all(scale.low <= v <= scale.high for v in values)
    assert not zero or scale.low <= 0 <= scale.high
    assert 2 <= len(ticks) <= 2 * count + 2
    assert all(-1e-6 <= scale.place(t) <= 1 + 1e-6 for t in ticks)
    steps = [b - a for a, b in pairwise(ticks)]
    assert min(steps) > 0
    assert max(steps) - min(steps) <= 1e-4 * max(steps)
    mantissa = steps[0] / 10 ** math.floor(math.log10(steps[0] * 1.001))
    assert min(abs(mantissa - m) for m in (1, 2, 5, 10)) < 0.01


@given(st.lists(common, min_size=1, max_size=5), st.integers(2, 10))
def test_linear_labels_differ_and_say_the_tick(values: list[float], count: int) -> None:
    ticks = AxisScale.over(values, pad=0.05).ticks(count)
    shown = labels(ticks)
    assert len(set(shown)) == len(ticks)
    for tick, label in zip(ticks, shown, strict=True):
        assert parsed(label) == pytest.approx(tick, rel=1e-6, abs=1e-6 * (ticks[1] - ticks[0]))


@given(st.lists(positive | st.floats(0.5, 20), min_size=1, max_size=5), st.integers(3, 8))
def test_log_ticks_are_rising_and_inside(values: list[float], count: int) -> None:
    scale = AxisScale.over(values, log=True, pad=0.05)
    ticks = scale.ticks(count)
    assert 2 <= len(ticks) <= 2 * count + 2
    assert ticks == sorted(set(ticks))
    assert all(-1e-6 <= scale.place(t) <= 1 + 1e-6 for t in ticks)
    shown = labels(ticks, log=True)
    assert len(set(shown)) == len(shown)


@pytest.mark.parametrize(
    ("values", "log", "expected"),
    [
        ([0, 2000], False, ["0", "500", "1,000", "1,500", "2,000"]),
        ([0, 1e-3], False, ["0", "0.0002", "0.0004", "0.0006", "0.0008", "0.0010"]),
        ([0, 48_000], False, ["0", "10k", "20k", "30k", "40k"]),
        ([0, 4e-5], False, ["0", "1e-5", "2e-5", "3e-5", "4e-5"]),
        ([-1, 1], False, ["-1.0", "-0.5", "0", "0.5", "1.0"]),
        ([1.3, 4.3], True, ["1.5", "2", "3", "4"]),
        ([1, 1e6], True, ["1", "10", "100", "1000", "10k", "100k", "1M"]),
        ([1e-5, 1e-3], True, ["1e-5", "0.0001", "0.001"]),
    ],
)
def test_labels_as_people_write_them(values: list[float], log: bool, expected: list[str]) -> None:
    ticks = AxisScale.over(values, log=log).ticks(4)
    assert labels(ticks, log) == expected


@pytest.mark.parametrize("log", [False, True])
def test_places_are_the_inverse_of_the_axis(log: bool) -> None:
    scale = AxisScale(2.0, 32.0, log)
    assert (scale.place(2), scale.place(32)) == (0, 1)
    assert scale.place(8) == pytest.approx(0.5 if log else 0.2)


@pytest.mark.parametrize(
    "values", [[], [math.nan], [math.inf, -math.inf], [5.0], [0.0, 0.0], [1e9, 1e9 + 1e-7], [-1e100, 1e100]]
)
@pytest.mark.parametrize("log", [False, True])
def test_degenerate_values_have_an_axis(values: list[float], log: bool) -> None:
    scale = AxisScale.over(values, log=log, pad=0.05)
    assert scale.low < scale.high
    assert all(math.isfinite(t) for t in scale.ticks())


def test_what_can_be_drawn() -> None:
    assert drawable(0.0)
    assert not drawable(0.0, log=True)
    assert not any(drawable(v) for v in (None, math.nan, math.inf, -math.inf, 2 * LARGEST))
