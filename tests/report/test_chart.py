"""Line charts: well-formed, true to the values, and readable in both schemes."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.checks import HOSTILE, coordinates, found, read_svg, words

from qkv.report.charts.chart import LineChart
from qkv.report.charts.frame import COLOURS, apart, asset, shortened, text_width
from qkv.report.charts.series import Line

value = st.one_of(st.floats(), st.floats(-10, 10), st.none())
series = st.lists(st.tuples(st.floats() | st.floats(0, 1e4), value), max_size=30)


@given(
    st.lists(series, max_size=9),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([200, 360, 960]),
)
def test_every_chart_is_xml_with_finite_coordinates(
    many: list[list[tuple[float, float | None]]], x_log: bool, y_log: bool, smooth: bool, zero: bool, width: int
) -> None:
    drawn = [
        Line(f"line {i}", [x for x, _ in pairs], [y for _, y in pairs], smooth=smooth, points=not smooth)
        for i, pairs in enumerate(many)
    ]
    chart = LineChart(
        "Loss", drawn, "step", x_log=x_log, y_log=y_log, y_zero=zero, width=width, events=[(3.0, "resumed")]
    )
    for standalone in (True, False):
        root = read_svg(chart.svg(standalone))
        assert len(found(root, "style")) == standalone


def test_hostile_names_stay_text() -> None:
    chart = LineChart(
        HOSTILE,
        [Line(HOSTILE, [1, 2], [1.0, 2.0], points=True)] * 2,
        HOSTILE,
        HOSTILE,
        events=[(1.5, HOSTILE)],
        description=HOSTILE,
    )
    for drawn in (chart, chart.compact()):
        assert drawn is not None
        root = read_svg(drawn.svg())
        assert "</script>" in (root[0].text or "")
        assert not found(root, "script")


def test_the_line_goes_through_its_values() -> None:
    chart = LineChart("t", [Line("a", [0, 1, 2, 4], [0.0, 10.0, 5.0, 10.0])], y_zero=True)
    root = read_svg(chart.svg())
    (path,) = found(root, "path", "line")
    left, top, width, height = (float(v) for v in (root.get("data-plot") or "").split())
    kind, low, high = (root.get("data-y") or "").split()
    assert kind == "linear"
    assert float(low) == 0.0
    places = [
        (left + x / 4 * width, top + height * (1 - y / float(high))) for x, y in [(0, 0), (1, 10), (2, 5), (4, 10)]
    ]
    for (x, y), (wanted_x, wanted_y) in zip(coordinates(path)[0], places, strict=True):
        assert (x, y) == (pytest.approx(wanted_x, abs=0.11), pytest.approx(wanted_y, abs=0.11))


def test_values_that_are_no_numbers_break_the_line_and_are_marked() -> None:
    values = [1.0, 2.0, math.nan, math.nan, 3.0, 4.0, math.inf, 5.0, None, 6.0]
    root = read_svg(LineChart("t", [Line("a", range(10), values)], "step").svg())
    (path,) = found(root, "path", "line")
    assert [len(stroke) for stroke in coordinates(path)] == [2, 2, 2]  # None does not break it
    about = ["".join(e.itertext()) for e in found(root, "rect", "gap")]
    assert about == ["a: NaN at step 2 to 3", "a: ∞ at step 6"]
    assert [w for w in words(root) if w in ("NaN", "∞")] == ["NaN", "∞"]


def test_what_a_logarithm_cannot_show_is_marked() -> None:
    root = read_svg(LineChart("t", [Line("a", [0, 1, 2, 3], [1.0, 2.0, 0.0, 3.0])], "step", y_log=True).svg())
    assert "≤ 0" in words(root)
    assert len(found(root, "circle")) == 1  # the lonely last value is a dot


def test_an_empty_chart_says_so() -> None:
    assert "no values yet" in words(read_svg(LineChart("t", []).svg()))
    assert "no values yet" in words(read_svg(LineChart("t", [Line("a", [1], [math.nan])]).svg()))


def test_names_stand_at_the_ends_or_in_a_legend() -> None:
    wide = LineChart("t", [Line("first", [0, 9], [1.0, 2.0]), Line("second", [0, 9], [5.0, 2.001])])
    names = found(read_svg(wide.svg()), "text", "name")
    assert ["".join(n.itertext()) for n in names] == ["second 2.001", "first 2.000"]
    assert abs(float(names[0].get("y") or 0) - float(names[1].get("y") or 0)) >= 15.9
    narrow = wide.compact()
    assert narrow is not None
    root = read_svg(narrow.svg())
    assert not found(root, "text", "name")
    assert {"first 2.000", "second 2.001"} <= set(words(root))
    ending_early = replace(wide, lines=[wide.lines[0], Line("second", [0, 4], [5.0, 2.0])])
    assert not found(read_svg(ending_early.svg()), "text", "name")


def test_the_legend_keeps_every_name() -> None:
    many = [Line(f"a rather long name {i}", [0, 9], [1.0, i]) for i in range(12)]
    chart = LineChart("t", many).compact()
    assert chart is not None
    shown = words(read_svg(chart.svg()))
    assert all(any(f"name {i} " in w for w in shown) for i in range(12))


def test_long_series_are_thinned_to_the_width() -> None:
    values = [math.sin(i / 50) for i in range(100_000)]
    values[77_777] = 9.0
    chart = LineChart("t", [Line("a", range(100_000), values)])
    (shown,) = chart.data()["lines"]
    assert len(shown["x"]) <= 2 * chart.width
    assert dict(zip(shown["x"], shown["y"], strict=True))[77_777] == 9
    assert len(chart.svg()) < 40_000


def test_steps_begin_at_zero_and_stay_whole_numbers() -> None:
    chart = LineChart("t", [Line("a", range(1, 1_234_568, 1000), [1.0] * 1235)], "step")
    assert (read_svg(chart.svg()).get("data-x") or "").startswith("linear 0.0 ")
    assert all(isinstance(x, int) for x in chart.data()["lines"][0]["x"])


def test_events_are_upright_lines_with_their_words() -> None:
    events = [(5.0, "resumed"), (5.1, "saved"), (99.0, "outside"), (math.nan, "nowhere")]
    root = read_svg(LineChart("t", [Line("a", [0, 10], [1.0, 2.0])], "step", events=events).svg())
    assert ["".join(e.itertext()) for e in found(root, "line", "event")] == ["resumed (step 5)", "saved (step 5.1)"]
    assert "resumed" in words(root)
    assert "saved" not in words(root)  # its words would stand on those of its neighbour


@given(st.lists(st.floats(0, 300), max_size=12).map(sorted))
def test_labels_keep_apart_and_in_order(places: list[float]) -> None:
    moved = apart(places, 16, 0, 300)
    assert all(b - a >= 16 - 1e-9 for a, b in itertools.pairwise(moved))
    assert all(-1e-9 <= m <= 300 + 1e-9 for m in moved)
    free = [p for p in places if all(abs(p - q) >= 32 for q in places if q is not p) and 16 < p < 284]
    assert len(places) > 1 or all(p in moved for p in free)


def test_words_are_cut_to_their_room() -> None:
    assert shortened("short", 100) == "short"
    assert shortened("a name that is far too long", 60).endswith("…")
    assert text_width(shortened("a name that is far too long", 60)) <= 60


def schemes() -> list[dict[str, str]]:
    """The variables of the light and the dark scheme."""
    light, dark = asset("theme.css").split("@media", 1)
    return [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", part)) for part in (light, dark.split(".chart", 1)[0])]


def linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio."""
    high, low = sorted((0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(a), linear(b))), reverse=True)
    return (high + 0.05) / (low + 0.05)


SIGHT = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""Linear RGB as seen with each form of sight (Machado, Oliveira & Fernandes 2009, severity 1)."""


def seen(colour: str, sight: str) -> list[float]:
    """OKLab coordinates (Ottosson 2020) of a colour as seen."""
    r, g, b = (min(1.0, max(0.0, sum(m * c for m, c in zip(row, linear(colour), strict=True)))) for row in SIGHT[sight])
    cones = [
        0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
        0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
        0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
    ]
    x, y, z = (c ** (1 / 3) for c in cones)
    return [
        0.2104542553 * x + 0.7936177850 * y - 0.0040720468 * z,
        1.9779984951 * x - 2.4285922050 * y + 0.4505937099 * z,
        0.0259040371 * x + 0.7827717662 * y - 0.8086757660 * z,
    ]


@pytest.mark.parametrize("scheme", schemes(), ids=["light", "dark"])
def test_words_and_lines_stand_out_from_the_paper(scheme: dict[str, str]) -> None:
    for name in ("ink", "muted", "danger", "good", "accent", *(f"s{i}" for i in range(COLOURS))):
        for ground in ("paper", "panel"):
            assert contrast(scheme[name], scheme[ground]) >= 4.1 + 0.4 * (ground == "paper"), (name, ground)


@pytest.mark.parametrize("scheme", schemes(), ids=["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_series_are_told_apart_with_every_form_of_sight(scheme: dict[str, str], sight: str) -> None:
    for a, b in itertools.combinations([scheme[f"s{i}"] for i in range(COLOURS)], 2):
        assert math.dist(seen(a, sight), seen(b, sight)) > 0.065, (a, b)


def test_the_name_of_a_chart_holds_its_values() -> None:
    drawn = LineChart("Loss", [Line("training", [1, 2, 3], [4.0, 1.5, 2.0])]).svg()
    assert 'aria-label="Loss. training: from 4.000 to 2.000, lowest 1.500, highest 4.000."' in drawn
