"""Heat maps: each cell has the colour of its value, whether drawn one by one or as an image."""

from __future__ import annotations

import base64
import io
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.checks import HOSTILE, found, read_svg, words

from qkv.report.charts.heatmap import HeatMap, colour, png


def hexadecimal(share: float) -> str:
    return "#" + bytes(colour(share)).hex()


@given(st.lists(st.lists(st.none() | st.floats(), max_size=6), max_size=6), st.booleans())
def test_every_map_is_xml(values: list[list[float | None]], numbers: bool) -> None:
    chart = HeatMap(HOSTILE, values, [HOSTILE] * 3, ["x"] * 9, HOSTILE, HOSTILE, numbers=numbers)
    assert len(found(read_svg(chart.svg()), "rect")) >= 24


def test_cells_have_the_colour_of_their_value_and_blanks_none() -> None:
    root = read_svg(HeatMap("t", [[0.0, 1.0], [math.nan, None]], ["a", "b"], ["c", "d"], numbers=True).svg())
    cells = [e for e in found(root, "rect") if found(e, "title")]
    assert [e.get("fill") for e in cells] == [hexadecimal(0), hexadecimal(1)]
    assert ["".join(e.itertext()) for e in cells] == ["a, c: 0", "a, d: 1"]
    assert {"a", "b", "c", "d", "0", "1"} <= set(words(root))


def test_the_ends_of_the_colours_can_be_fixed() -> None:
    root = read_svg(HeatMap("t", [[0.5]], low=0, high=1).svg())
    (cell,) = [e for e in found(root, "rect") if found(e, "title")]
    assert cell.get("fill") == hexadecimal(0.5)


def test_a_large_map_is_one_image_with_a_pixel_a_value() -> None:
    from PIL import Image

    values = [[i * 40 + j if j <= i else None for j in range(40)] for i in range(40)]
    (image,) = found(read_svg(HeatMap("t", values).svg()), "image")
    kind, _, data = (image.get("href") or "").partition(",")
    assert kind == "data:image/png;base64"
    pixels = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA")
    assert pixels.size == (40, 40)
    assert pixels.getpixel((1, 0)) == (0, 0, 0, 0)
    assert pixels.getpixel((0, 0)) == (*colour(0), 255)
    assert pixels.getpixel((39, 39)) == (*colour(1), 255)
    assert pixels.getpixel((20, 30)) == (*colour(round((30 * 40 + 20) / 1599 * 254) / 254), 255)


def test_rows_of_the_image_are_rows_of_the_map() -> None:
    from PIL import Image

    image = Image.open(io.BytesIO(png([[0.0, None, 1.0]]))).convert("RGBA")
    assert image.size == (3, 1)
    assert [image.getpixel((x, 0))[3] for x in range(3)] == [255, 0, 255]  # type: ignore[index]


def test_lightness_rises_with_the_value() -> None:
    light = [0.2126 * r**2.2 + 0.7152 * g**2.2 + 0.0722 * b**2.2 for r, g, b in (colour(i / 100) for i in range(101))]
    assert all(b > a for a, b in pairwise(light))
    assert colour(-1) == colour(0)
    assert colour(2) == colour(1)


def test_a_map_of_one_value_has_a_scale() -> None:
    assert "7" in words(read_svg(HeatMap("t", [[7.0]], numbers=True).svg()))
    assert read_svg(HeatMap("t", [[7.0]], low=7, high=7).svg()) is not None
    assert read_svg(HeatMap("t", [[]]).svg()) is not None


@pytest.mark.parametrize("names", [["a"], ["a rather long name of a token"]])
def test_long_names_of_columns_are_tilted(names: list[str]) -> None:
    root = read_svg(HeatMap("t", [[1.0, 2.0]], columns=names * 2).svg())
    tilted = [e for e in found(root, "text") if e.get("transform")]
    assert len(tilted) == (2 if len(names[0]) > 1 else 0)


def test_a_screen_reader_is_told_the_values() -> None:
    small = HeatMap(
        "Confusion", [[0.75, 0.25], [0.0, 1.0]], ["cat", "dog"], ["cat", "dog"], written=[["3", "1"], ["0", "8"]]
    )
    assert 'aria-label="Confusion. ' in small.svg()
    assert "cat: cat 3, dog 1. dog: cat 0, dog 8." in small.svg()
    large = HeatMap("Many", [[float(i * j) for j in range(30)] for i in range(30)])
    assert "Largest: 30, 30 841; " in large.svg()
    assert len(large.svg().split("aria-label=")[1].split('"')[1]) < 400
