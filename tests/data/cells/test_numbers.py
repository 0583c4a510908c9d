"""One convention of numbers for a column: known lists in random conventions are read back, or asked about."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.cells.numbers import number_form, read_numbers, too_many

UNITS = st.sampled_from([("", ""), ("$", ""), ("", " €"), ("CHF ", ""), ("", " %"), ("R$ ", ""), ("", " kr")])


def spelled(value: float, digits: int, decimal: str, thousands: str, negative: str) -> str:
    """Number as a person writes it, by Python's own formatting with the marks exchanged."""
    text = f"{abs(value):,.{digits}f}".replace(",", "T").replace(".", decimal).replace("T", thousands)
    return negative.format(text) if value < 0 else text


@given(
    st.lists(st.floats(-1e7, 1e7, allow_nan=False), min_size=2, max_size=12),
    st.integers(0, 3),
    st.sampled_from([".", ","]),
    st.sampled_from(["", ",", ".", " ", "'", "’", "\u00a0", "\u202f"]),
    st.sampled_from(["-{}", "({})", "−{}", "{}-"]),
    UNITS,
)
def test_numbers_in_any_convention_are_read_back_or_asked_about(
    values: list[float], digits: int, decimal: str, thousands: str, negative: str, unit: tuple[str, str]
) -> None:
    if thousands == decimal:
        thousands = ""
    values = [round(value, digits) for value in values]
    cells = [f"{unit[0]}{spelled(value, digits, decimal, thousands, negative)}{unit[1]}" for value in values]
    found = read_numbers(cells)
    assert not found.wrong
    assert found.form.question or found.form.example or [float(cell) for cell in cells] == found.values
    if found.values != values:  # only where every mark stands before three digits
        assert found.form.question or (found.form.example and digits in (0, 3))
        told = read_numbers(cells, "point" if decimal == "." else "comma")
        assert told.values == values or (decimal, thousands) == (",", ".") or digits == 0


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["997", "1,015", "1,012"], [997, 1015, 1012]),
        (["997", "1.015", "1.012"], [997, 1015, 1012]),
        (["250.125", "1.125", "300"], [250.125, 1.125, 300]),
        (["0,123", "1,015"], [0.123, 1.015]),
        (["1,234,567", "12,000"], [1234567, 12000]),
        (["1.234.567", "12.000"], [1234567, 12000]),
        (["12,34,567", "5,000"], [1234567, 5000]),
        (["$1,015.50", "$3", "(2)"], [1015.5, 3, -2]),
        (["12 %", "5,5 %", "0"], [12, 5.5, 0]),
        (["1,5E+03", "2"], [1500, 2]),
        (["1'015.5", "20"], [1015.5, 20]),
        ([5, "6.5", 7.5], [5, 6.5, 7.5]),
        (["+5", ".5", "5."], [5, 0.5, 5]),
    ],
)
def test_the_convention_is_decided_by_all_cells(cells: list[object], values: list[float]) -> None:
    found = read_numbers(cells)
    assert (found.values, found.form.question) == (values, "")


def test_what_stays_open_is_asked_with_a_cell() -> None:
    form = number_form(["1,015", "2,332"])
    assert form.doubt("y", "data.decimal") == (
        "the numbers of the column 'y' can be read in two ways: '1,015' as 1015 or as 1.015; "
        "give data.decimal=point or data.decimal=comma, the mark before decimals"
    )
    assert read_numbers(["1,015", "2,332"], "comma").values == [1.015, 2.332]
    assert read_numbers(["1,015", "2,332"], "point").values == [1015, 2332]
    assert number_form(["997", "1,015"] * 40 + ["3,5"]).question


@pytest.mark.parametrize("cells", [["01.01.2024", "02.01.2024"], ["soon"], [], ["1.2.3", "1,2,3"]])
def test_columns_of_other_texts_hold_no_number(cells: list[str]) -> None:
    assert read_numbers(cells).wrong == list(range(len(cells)))


@pytest.mark.parametrize("cell", ["NA", "n/a", "", " ", "-", "NULL", "None", "NaN", "#N/A", "?", None, math.nan])
def test_empty_cells_are_no_errors(cell: object) -> None:
    found = read_numbers(["1", cell, "2"])
    assert (found.values[::2], found.wrong) == ([1, 2], [])
    assert math.isnan(found.values[1])


@pytest.mark.parametrize("cell", ["ERR", "1_000", "inf", "12 kg", "1,2,3", "5 %", "#DIV/0!", "12:30", "0x1F", "--5"])
def test_other_cells_are_counted_and_never_missing(cell: object) -> None:
    assert read_numbers(["1", "2.5", cell, "3"]).wrong == [2]
    assert not too_many(3, 100)
    assert too_many(6, 100)
    assert too_many(2, 3)
