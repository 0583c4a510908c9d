"""Time stamps of a column: known dates in many forms are read back, stepped on the calendar, written as they came."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.cells.stamps import read_stamps
from qkv.data.cells.steps import guess_step

FORMS = [
    *("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%m-%d-%Y", "%Y%m%d", "%d %b %Y", "%b %d, %Y"),
    *("%d-%b-%y", "%d%b%Y", "%d %B %Y", "%d.%m.%y", "%Y-%j", "%G-W%V-%u", "%d/%m/%Y %H:%M", "%Y-%m-%dT%H:%M:%S"),
    *("%m/%d/%Y %I:%M %p", "%Y%m%d%H%M%S", "%A, %d %B %Y"),
]
ISO = ("%d/%m/%Y", "%m/%d/%Y", "%m-%d-%Y", "%A")
"""Beginnings of forms that are written as ISO dates."""


def after(cells: list[Any], count: int = 1) -> tuple[str, list[Any]]:
    """(step, next time stamps) of a column of stamps."""
    stamps = read_stamps(cells)
    values = np.unique(stamps.values)
    step = guess_step([values], stamps.dates)
    assert step is not None
    days = bool((values % 86400 == 0).all())
    return step.words, [stamps.form.text(each, days) for each in step.following(float(values[-1]), count)]


@given(st.dates(date(1975, 1, 1), date(2060, 1, 1)), st.integers(32, 60), st.sampled_from(FORMS))
def test_days_in_any_form_are_read_back_and_written_as_they_came(first: date, count: int, form: str) -> None:
    begin = datetime(first.year, first.month, first.day)
    days = [begin + timedelta(i) for i in range(count + 1)]
    cells = [day.strftime(form) for day in days]
    stamps = read_stamps(cells[:-1])
    assert [datetime(1970, 1, 1) + timedelta(seconds=value) for value in stamps.values] == days[:-1]
    if form.startswith(ISO):
        assert after(cells[:-1])[1][0].startswith(days[-1].date().isoformat()) or form.startswith("%A")
    else:
        assert after(cells[:-1]) == ("1 day", [cells[-1]])


@given(
    st.integers(1980, 2050),
    st.integers(14, 40),
    st.sampled_from(["01/%m/%Y", "%m/01/%Y", "%Y-%m", "%m/%Y", "%b %Y", "%B %Y", "%b-%y", "%Y%m", "%YM%m", "%d.%m.%Y"]),
)
def test_months_are_steps_of_the_calendar(year: int, count: int, form: str) -> None:
    months = [datetime(year + i // 12, i % 12 + 1, 1) for i in range(count + 1)]
    cells = [month.strftime(form) for month in months]
    expected = months[-1].date().isoformat() if "01/" in form else cells[-1]
    assert after(cells[:-1]) == ("1 month", [expected])
    other = read_stamps(cells[:-1]).other
    assert bool(other) == ("01/" in form)


@pytest.mark.parametrize("form", ["{}-Q{}", "{}Q{}", "{} Q{}"])
def test_quarters_are_three_months(form: str) -> None:
    cells = [form.format(2018 + i // 4, i % 4 + 1) for i in range(10)]
    assert after(cells, 3) == ("3 months", [form.format(2020, 3), form.format(2020, 4), form.format(2021, 1)])


@pytest.mark.parametrize(
    ("cells", "step", "following"),
    [
        (["2018-01-31", "2018-02-28", "2018-03-31"], "1 month", "2018-04-30"),
        (["2018-01-30", "2018-02-28", "2018-03-30", "2019-02-28"], "1 month", "2019-03-30"),
        (["2018W01", "2018W02", "2018W03"], "1 week", "2018W04"),
        (["2018-03-31", "2018-06-30", "2018-09-30"], "3 months", "2018-12-31"),
        ([20180101, 20180102, 20180131], "1 day", 20180201),
        ([201811, 201812, 201901], "1 month", 201902),
        ([1514764800, 1514851200, 1514937600], "1 day", 1515024000),
        ([43101, 43132, 43160, 43191], "1 month", 43221),
        ([0, 1, 2, 3], "1", 4),
        (["1 Mai 2018", "2 Mai 2018", "3 Mai 2018"], "1 day", "4 Mai 2018"),
    ],
)
def test_steps_of_other_forms(cells: list[Any], step: str, following: Any) -> None:
    assert after(cells) == (step, [following])


def test_business_days_are_followed_by_business_days() -> None:
    days = [day for i in range(40) if (day := date(2024, 1, 1) + timedelta(i)).weekday() < 5]
    words, found = after([day.isoformat() for day in days], 4)
    assert (words, found) == ("1 business day", ["2024-02-12", "2024-02-13", "2024-02-14", "2024-02-15"])


def test_zones_are_kept_and_days_at_local_midnight_are_days() -> None:
    def berlin(i: int) -> str:
        return (datetime(2024, 1, 1) + timedelta(i)).isoformat() + ("+02:00" if 90 <= i <= 300 else "+01:00")

    words, found = after([berlin(i) for i in range(330)], 2)
    assert (words, found) == ("1 day", ["2024-11-26T00:00:00+01:00", "2024-11-27T00:00:00+01:00"])
    hours = [datetime(2024, 3, 30, 12, tzinfo=UTC) + timedelta(hours=i) for i in range(30)]
    change = datetime(2024, 3, 31, 1, tzinfo=UTC)
    cells = [hour.astimezone(timezone(timedelta(hours=1 + (hour >= change)))).isoformat() for hour in hours]
    assert after(cells[:-1]) == ("1 hour", [cells[-1]])


def test_cells_without_a_zone_beside_others_are_unreadable() -> None:
    stamps = read_stamps(["2024-01-01 00:00Z", "2024-01-02 00:00Z", "2024-01-03 00:00"])
    assert np.isfinite(stamps.values).tolist() == [True, True, False]


@pytest.mark.parametrize("cell", ["2024-02-30", "31/31/2024", "2024-13", "soon", "2024-01-01 25:00", "2018-Q5"])
def test_impossible_dates_are_not_read(cell: str) -> None:
    assert np.isnan(read_stamps([cell]).values).all()


def test_both_orders_are_told() -> None:
    cells = ["01/02/2018", "01/03/2018", "01/04/2018"]
    note = read_stamps(cells).note(cells, "data.processor.dates")
    assert note == (
        "time stamps are read as day/month/year, such as 01/02/2018 as 2018-02-01; month/day/year is possible too "
        "(data.processor.dates=%m/%d/%Y)"
    )
    american = read_stamps(cells, "%m/%d/%Y")
    assert (american.values[1] - american.values[0]) == 86400
