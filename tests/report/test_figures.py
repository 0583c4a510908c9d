"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.report.figures import all_numbers, cell, clock, counted, duration, fixed, place, short, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (0.5, "0.5"),
        (123.4, "123"),
        (9876, "9,876"),
        (-9876, "-9,876"),
        (9999.6, "10k"),
        (48_213, "48.2k"),
        (999_999, "1M"),
        (1_234_567, "1.23M"),
        (7.9e12, "7.9T"),
        (1e22, "1e4E"),
        (3.2e-5, "3.2e-5"),
        (math.nan, "NaN"),
        (-math.inf, "−∞"),
    ],
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.8832, "1.883"),
        (1.9, "1.900"),
        (10.0, "10.00"),
        (9.99996, "10.000"),
        (0.01030, "0.01030"),
        (0, "0"),
        (2e-5, "2e-5"),
        (math.inf, "∞"),
    ],
)
def test_fixed(value: float, text: str) -> None:
    assert fixed(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.7, "1 kB"),
        (1234, "1.23 kB"),
        (999_600, "1 MB"),
        (48_200_000, "48.2 MB"),
        (3e12, "3 TB"),
    ],
)
def test_size(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.85, "850 ms"),
        (0.9996, "1.0 s"),
        (4.24, "4.2 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (192, "3 min 12 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (86_399, "1 d 0 h"),
        (273_600, "3 d 4 h"),
        (math.nan, "–"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (41, "0:41"), (725, "12:05"), (11_242, "3:07:22"), (-3, "0:00"), (math.inf, "–:––")],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1551, "1,551"), (1_234_567.0, "1,234,567"), (0.5, "0.5"), (7e9, "7G"), (-3, "-3")]
)
def test_place(value: float, text: str) -> None:
    assert place(value) == text


@given(st.floats(1e-4, 1e17))
def test_short_is_within_half_of_its_last_digit(value: float) -> None:
    text = short(value).replace(",", "")
    scale = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
    read = float(text[:-1]) * scale[text[-1]] if text[-1] in scale else float(text)
    assert read == pytest.approx(value, rel=0.0051)
    assert len(text) <= 7


def test_cells_of_a_table() -> None:
    assert [cell(v) for v in (None, True, 804_096, 1.5, "x")] == ["", "yes", "804,096", "1.500", "x"]
    assert all_numbers([1, 2.5, None])
    assert not all_numbers([1, "2"])
    assert not all_numbers([True])
    assert not all_numbers([None])


def test_a_number_and_its_noun_agree() -> None:
    assert [counted(count, "layer") for count in (0, 1, 2, 1200)] == ["0 layers", "1 layer", "2 layers", "1,200 layers"]
