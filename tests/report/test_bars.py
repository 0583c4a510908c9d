"""Bars are as long as their values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.checks import HOSTILE, found, read_svg, words

from qkv.report.charts.bars import BarChart


@given(st.lists(st.tuples(st.text(max_size=30), st.floats()), max_size=8))
def test_every_bar_chart_is_xml(bars: list[tuple[str, float]]) -> None:
    root = read_svg(BarChart(HOSTILE, bars, unit=HOSTILE).svg())
    assert len(found(root, "rect", "bar")) == len(bars)


def test_bars_are_as_long_as_their_values() -> None:
    root = read_svg(BarChart("t", [("a", 10.0), ("b", 5.0), ("c", -5.0)]).svg())
    ten, five, minus = found(root, "rect", "bar")
    assert float(five.get("width") or 0) == pytest.approx(float(ten.get("width") or 0) / 2, abs=0.2)
    assert float(minus.get("width") or 0) == pytest.approx(float(five.get("width") or 0), abs=0.2)
    assert float(minus.get("x") or 0) + float(minus.get("width") or 0) == pytest.approx(
        float(ten.get("x") or 0), abs=0.2
    )


def test_values_and_names_are_written_and_one_stands_out() -> None:
    root = read_svg(BarChart("t", [("ours", 48_200.0), ("theirs", math.nan)], unit="tokens/s", highlight="ours").svg())
    assert {"ours", "theirs", "48.2k", "NaN"} <= set(words(root))
    assert len(found(root, "rect", "quiet")) == 1
    assert "ours: 48.2k" in (root[1].text or "")
