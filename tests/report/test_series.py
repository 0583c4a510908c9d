"""Thinning keeps every peak, smoothing keeps the place, gaps stay gaps."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.report.charts.series import Line, downsample, smoothed, traces

value = st.floats(-1e6, 1e6) | st.just(math.nan) | st.just(math.inf)


@given(st.lists(value, min_size=1, max_size=400), st.integers(5, 60), st.booleans())
def test_thinning_keeps_order_ends_and_extremes(values: list[float], limit: int, x_log: bool) -> None:
    pairs: list[tuple[float, float]] = list(enumerate(values, start=1))
    kept = downsample(pairs, limit, x_log)
    assert len(kept) <= max(limit, len(pairs) if len(pairs) <= limit else 0)
    places = [x for x, _ in kept]
    assert places == sorted(set(places))
    assert all(pairs[int(x) - 1] is pair for x, pair in zip(places, kept, strict=True))
    assert (places[0], places[-1]) == (1, len(values))
    known = [v for v in values if math.isfinite(v)]
    if known:
        shown = [v for _, v in kept if math.isfinite(v)]
        assert (min(shown), max(shown)) == (min(known), max(known))


@given(st.integers(0, 9_999), st.integers(0, 9_999))
def test_one_spike_and_one_gap_among_ten_thousand_are_kept(spike: int, gap: int) -> None:
    values = [math.sin(i) for i in range(10_000)]
    values[spike] = 50.0
    if gap != spike:
        values[gap] = math.nan
    kept = dict(downsample(list(enumerate(values)), 300))
    assert kept[spike] == 50.0
    assert gap == spike or math.isnan(kept[gap])
    assert len(kept) <= 300


def test_a_gap_keeps_its_ends() -> None:
    values = [math.nan if 3_333 <= i <= 7_777 else 1.0 for i in range(10_000)]
    gap = [x for x, y in downsample(list(enumerate(values)), 100) if math.isnan(y)]
    assert (gap[0], gap[-1]) == (3_333, 7_777)


def test_each_stretch_keeps_its_own_extremes() -> None:
    values = [(-1) ** i * (i // 1000 + 1) for i in range(10_000)]
    kept = downsample(list(enumerate(values)), 202)
    for thousand in range(10):
        shown = [y for x, y in kept if x // 1000 == thousand]
        assert {min(shown), max(shown)} == {-(thousand + 1), thousand + 1}


def test_the_mean_of_a_straight_line_is_the_line() -> None:
    pairs = [(float(i), 3.0 * i) for i in range(1000)]
    mean = smoothed(pairs, 300)
    # Where the window is cut by the end it only looks back, so the last half window lies lower.
    assert all(y == pytest.approx(3.0 * x) for x, y in mean if x < 980)


def test_the_mean_is_the_mean_of_the_window() -> None:
    generator = random.Random(0)
    values = [generator.gauss(0, 1) for _ in range(500)]
    half = round(500 * 0.03 / 2)
    for x, y in smoothed(list(enumerate(values)), 100):
        reach = min(half, int(x))
        window = [values[i] for i in range(int(x) - reach, min(500, int(x) + reach + 1))]
        assert y == pytest.approx(sum(window) / len(window))


def test_a_spike_does_not_spoil_the_means_after_it() -> None:
    values = [1.0] * 1000
    values[10] = 1e20
    assert all(y == 1.0 for x, y in smoothed(list(enumerate(values)), 500) if x > 50)


def test_the_mean_stops_at_a_gap_and_starts_anew() -> None:
    values = [1.0] * 50 + [math.nan] * 3 + [5.0] * 50
    mean = dict(smoothed(list(enumerate(values)), 1000))
    assert {mean[i] for i in range(50)} == {1.0}
    assert {mean[i] for i in range(53, 103)} == {5.0}
    assert any(math.isnan(v) for v in mean.values())


def test_broken_at_every_second_value_stays_small() -> None:
    pairs = [(float(i), math.nan if i % 2 else 1.0) for i in range(20_000)]
    assert len(smoothed(pairs, 300)) <= 300
    assert len(downsample(pairs, 300)) <= 300


def test_none_is_skipped_and_places_are_sorted() -> None:
    line = Line("a", [3, 1, 2, math.nan], [30.0, 10.0, None, 1.0])
    assert line.measured() == [(1, 10.0), (3, 30.0)]


def test_a_line_needs_a_place_for_each_value() -> None:
    with pytest.raises(ValueError, match="'a' has 2 x values and 1 y values"):
        Line("a", [1, 2], [1.0]).measured()


def test_a_smooth_line_is_drawn_twice_and_a_short_one_once() -> None:
    long = traces(Line("a", range(100), [1.0] * 100, smooth=True), 0, 1000)
    assert [(t.name, t.faint) for t in long] == [("a", True), ("a, mean", False)]
    assert len(traces(Line("a", range(5), [1.0] * 5, smooth=True), 0, 1000)) == 1
