"""Student's t distribution, paired tests and Holm's correction against scipy and calculations by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from qkv.comparison.statistics import estimate, holm, paired_p, t_outside, t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 4, 30, 1000])
def test_the_t_distribution_is_that_of_scipy(freedom: int) -> None:
    for t in (0.0, 0.01, 0.7, 2.5, 60.0):
        assert t_outside(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-10)
        assert t_outside(-t, freedom) == t_outside(t, freedom)
    for probability in (0.6, 0.95, 0.975, 0.9995):
        assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9)


def test_the_paired_test_is_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for count in (2, 3, 10):
        one, other = rng.normal(size=count), rng.normal(0.5, size=count)
        assert paired_p((one - other).tolist()) == pytest.approx(stats.ttest_rel(one, other).pvalue, rel=1e-9)


def test_the_interval_is_that_of_scipy() -> None:
    values = [1.0, 1.5, 0.7, 1.1]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    found = estimate(values)
    assert found.half is not None
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high), rel=1e-9)


def test_too_few_values_have_no_interval_and_no_test() -> None:
    assert estimate([2.0]) == (2.0, None)
    assert paired_p([2.0]) is None


def test_equal_differences_leave_no_doubt() -> None:
    assert paired_p([0.0, 0.0]) == 1.0
    assert paired_p([0.5, 0.5]) == 0.0


def test_holm_multiplies_by_the_number_that_is_left_and_never_descends() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04: times 4, 3, 2, 1 = 0.04, 0.06, 0.06, 0.04; the last is raised to 0.06.
    found = holm({"c": 0.03, "a": 0.01, "d": 0.04, "b": 0.02})
    assert list(found) == ["c", "a", "d", "b"]
    assert [found[name] for name in "abcd"] == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert holm({"a": 0.7, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}
