"""Reading of series: time stamps, steps, gaps, several series, and windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.data.cells.stamps import read_stamps
from qkv.data.cells.steps import Step, guess_step
from qkv.data.series.read import Panel, ahead, read_panel
from qkv.data.series.seasons import autocorrelation, guess_period
from qkv.data.series.windows import Cutter, borders, fitted, scaled
from qkv.spec.data import Data
from qkv.spec.signals.series import Series
from qkv.system.errors import UserError


def panel_of(folder: Path, text: str, **fields: Any) -> Panel:
    path = folder / "table.csv"
    path.write_text(text)
    return read_panel(Data(source=str(path), **fields))


def days(count: int, value: str = "{}") -> str:
    return "".join(f"2024-01-{i + 1:02},{value.format(i)}\n" for i in range(count))


@pytest.mark.parametrize(
    ("cells", "step", "following"),
    [
        (["2024-01-01", "2024-01-02", "2024-01-04"], "1 day", "2024-01-05"),
        (["2024-01-31", "2024-02-29", "2024-03-31", "2024-05-31"], "1 month", "2024-06-30"),
        (["2020-01-01", "2021-01-01", "2022-01-01"], "12 months", "2023-01-01"),
        (["1/2/2024", "2/2/2024", "3/2/2024"], "1 day", "2024-02-04"),
        (["31.12.2023 23:00", "01.01.2024 00:00"], "1 hour", "01.01.2024 01:00"),
        ([2001, 2003, 2005], "2", 2007),
        (["2024-01-01T00:00:00+01:00", "2024-01-01T00:15:00+01:00"], "15 minutes", "2024-01-01T00:30:00+01:00"),
    ],
)
def test_the_step_is_the_usual_distance(cells: list[Any], step: str, following: Any) -> None:
    stamps = read_stamps(cells)
    found = guess_step([stamps.values], stamps.dates)
    assert found is not None
    (last,) = found.following(float(stamps.values[-1]), 1)
    whole = bool((stamps.values % 86400 == 0).all())
    assert (found.words, stamps.form.text(last, whole)) == (step, following)


def test_columns_are_guessed_and_told(tmp_path: Path) -> None:
    panel = panel_of(tmp_path, "date,shop,amount,price\n" + days(4, "a,{},1.5"))
    assert panel.columns[:4] == ("date", None, ("amount", "price"), ())
    assert panel.notes[:2] == ("'date' as the time and 'amount', 'price' as the values (guessed)", "a step is 1 day")


def test_gaps_are_counted_and_are_no_values(tmp_path: Path) -> None:
    panel = panel_of(tmp_path, "date,y\n2024-01-05,NaN\n2024-01-01,1\n2024-01-02,\n2024-01-03,3\n2024-01-06,6\n")
    (each,) = panel.series
    assert np.array_equal(each.values[:, 0], [1, np.nan, 3, np.nan, np.nan, 6], equal_nan=True)
    said = " ".join(panel.notes)
    assert "were not in order of time and have been sorted" in said
    assert "1 of 6 time stamps are missing" in said
    assert "2 of 5 values of" in said
    with pytest.raises(UserError, match=r"2 of 5 values of .* are missing; fill them in"):
        panel_of(tmp_path, (tmp_path / "table.csv").read_text(), bad_rows="refuse")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("date,y\n2024-01-01,1\n2024-01-01,2\n", "has two rows with the time '2024-01-01', line 2 and line 3"),
        ("date,y\n2024-01-01,1\nsoon,2\n2024-01-03,3\n", "1 of 3 time stamps .* such as 'soon' in line 3"),
        ("date,word\n2024-01-01,a\n2024-01-02,b\n", "has no column of numbers to forecast"),
        ("date,y\n2024-01-01,1\n", "has one row per series"),
        ("date,y\n", "has no rows"),
        ("t,y\n0,1\n0.001,2\n0.002,2\n9000,3\n", "give rows that are spaced more evenly"),
    ],
)
def test_unusable_files_are_refused_with_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    columns = {"time": "t"} if text.startswith("t,") else {}
    with pytest.raises(UserError, match=message):
        panel_of(tmp_path, text, columns=columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": "word"}, "4 of 4 cells of the column 'word' .* are not numbers, such as 'a' in line 2"),
        ({"label": "y"}, "there is no role 'label'"),
        ({"value": "y, z"}, "has no column 'z'"),
        ({"time": "date,y"}, "names several columns"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path: Path, columns: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        panel_of(tmp_path, "date,word,y\n" + days(4, "a,{}"), columns=columns)


def test_several_series_share_a_grid(tmp_path: Path) -> None:
    rows = ["shop,date,y"] + [f"a,2024-01-{i:02},{i}" for i in range(1, 9)]
    rows += [f"b,2024-01-{i:02},{10 * i}" for i in range(5, 13)]
    panel = panel_of(tmp_path, "\n".join(rows), columns={"series": "shop"})
    a, b = panel.series
    assert (a.name, b.name, b.first - a.first, len(b.values)) == ("a", "b", 4, 8)
    parts = borders(panel, (6, 3, 3))
    assert {name: (low - a.first, end - a.first) for name, (low, end) in parts.items()} == {
        "train": (0, 6),
        "validation": (6, 9),
        "test": (9, 12),
    }
    processor = fitted(panel, Series(), parts["train"][1], None)
    past = [*range(1, 7), 50, 60]
    assert processor.mean == (np.mean(past),)
    assert processor.deviation == pytest.approx((np.std(past),))
    series = scaled(panel, processor)
    cutter = Cutter(series, parts["train"], 2, 2)
    assert [cutter.place(i) for i in range(len(cutter))] == [(0, 0), (0, 1), (0, 2)]
    assert cutter.left_out == ["b"]
    held_out = Cutter(series, parts["validation"], 2, 2)  # inputs may begin before the part
    assert [held_out.place(i) for i in range(len(held_out))] == [(0, 4), (1, 0), (1, 1)]
    with pytest.raises(UserError, match=r"the splits need 13 steps, but .* has 12"):
        borders(panel, (6, 3, 4))


def windows_of(folder: Path, steps: int, observed: bool, text: str) -> Any:
    panel = panel_of(folder, text)
    processor = fitted(panel, Series(), 10**9, None).changed(mean=(0.0,), deviation=(1.0,))
    cutter = Cutter(scaled(panel, processor), (panel.series[0].first, 10**9), 6, 2)
    return cutter.cut(np.arange(len(cutter)), steps, np.random.default_rng(0), observed)


def test_windows_are_slices_whose_gaps_are_filled_forward_and_are_no_targets(tmp_path: Path) -> None:
    cells = ["0", "1", "", "3", "4", "5", "6", "", "8", "9"]
    text = "date,y\n" + "".join(f"2024-01-{i + 1:02},{cell}\n" for i, cell in enumerate(cells))
    found = windows_of(tmp_path, 6, False, text)
    assert found.past[:, :, 0].tolist() == [[0, 1, 1, 3, 4, 5], [1, 1, 3, 4, 5, 6], [1, 3, 4, 5, 6, 6]]
    assert np.array_equal(found.future[:, :, 0], [[6, np.nan], [np.nan, 8], [8, 9]], equal_nan=True)
    np.testing.assert_allclose(found.times[0], np.arange(-5, 1) / 6, rtol=1e-6)


def test_left_out_steps_are_those_without_a_value_and_others_at_random(tmp_path: Path) -> None:
    text = "date,y\n" + "".join(f"2024-01-{i + 1:02},{'' if i == 2 else i}\n" for i in range(12))
    found = windows_of(tmp_path, 4, True, text)
    assert found.read.shape == (5, 4, 1)
    for row, kept in enumerate(found.kept):
        assert sorted(set(kept.tolist())) == kept.tolist()
        assert 2 not in kept + row or row > 2
        last = 0
        for step in range(6):
            last = step if step in kept else last
            known = step if step in kept else next((k for k in reversed(kept) if k < step), kept[0])
            assert found.filled[row, step, 0] == found.past[row, known, 0]
    assert len({tuple(kept) for kept in found.kept}) > 1


def test_the_future_of_a_series_has_stamps_and_known_covariates(tmp_path: Path) -> None:
    text = "date,y,price\n" + days(3, "{},7") + "2024-01-04,,8\n"
    panel = panel_of(tmp_path, text, columns={"value": "y", "known": "price"})
    each = ahead(panel.series[0], panel.step, 2)
    assert (each.length, len(each.stamps)) == (3, 5)
    assert panel.text(each, -1) == "2024-01-05"
    assert np.array_equal(each.known[:, 0], [7, 7, 7, 8, np.nan], equal_nan=True)


def test_the_autocorrelation_is_that_of_a_loop() -> None:
    values = np.random.default_rng(0).normal(size=40).cumsum()
    found, centred = autocorrelation(values, 6), values - values.mean()
    for lag in range(6):
        expected = sum(centred[i] * centred[i + lag] for i in range(40 - lag)) / sum(centred**2)
        assert found[lag] == pytest.approx(expected)


@pytest.mark.parametrize(("season", "step", "period"), [(7, 86400.0, 7), (5, 86400.0, 5), (24, 3600.0, 24)])
def test_the_season_is_found(season: int, step: float, period: int) -> None:
    t = np.arange(400)
    values = (10 * np.sin(2 * np.pi * t / season) + np.random.default_rng(0).normal(size=400) + 0.1 * t)[:, None]
    assert guess_period([values], Step("seconds", step)) == period
    noise = np.random.default_rng(1).normal(size=(400, 1)).cumsum(0)
    assert guess_period([noise], Step("seconds", step)) is None


def test_rows_that_share_a_step_are_told_and_the_nearest_is_kept(tmp_path: Path) -> None:
    rows = [f"2024-01-01 {hour:02}:00,{hour}\n" for hour in range(24)]
    rows += [f"2024-01-01 {hour:02}:10,999\n" for hour in (0, 5, 10)]
    panel = panel_of(tmp_path, "time,y\n" + "".join(rows))
    assert panel.series[0].values[:, 0].tolist() == list(range(24))
    assert any("3 of 27 rows share their step with another row" in note for note in panel.notes)


def test_names_of_series_are_guessed_where_rows_share_time_stamps(tmp_path: Path) -> None:
    panel = panel_of(
        tmp_path, "shop,date,y\n" + "".join(f"{name},2024-01-{i + 1:02},{i}\n" for name in "ab" for i in range(9))
    )
    assert [each.name for each in panel.series] == ["a", "b"]
    assert "'shop' as the names of the series (guessed, since rows share time stamps)" in panel.notes


def test_cells_that_are_no_numbers_are_told_apart_from_missing_ones(tmp_path: Path) -> None:
    cells = [str(i) for i in range(100)]
    cells[7], cells[8] = "ERR", ""
    text = "t,y\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate(cells))
    panel = panel_of(tmp_path, text, columns={"time": "t"})
    said = " ".join(panel.notes)
    assert "1 of 100 cells of the column 'y'" in said
    assert "such as 'ERR' in line 9; they count as missing values" in said
    assert "1 of 100 values of" in said
    for i in range(20, 27):
        cells[i] = "ERR"
    with pytest.raises(
        UserError, match=r"8 of 100 cells of the column 'y' .* are not numbers, such as 'ERR' in line 9"
    ):
        panel_of(tmp_path, "t,y\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate(cells)), columns={"time": "t"})


def test_a_column_that_can_be_read_in_two_ways_is_asked_about(tmp_path: Path) -> None:
    text = "date;y\n2024-01-01;1,015\n2024-01-02;2,332\n"
    with pytest.raises(UserError, match=r"can be read in two ways: '1,015' as 1015 or as 1\.015"):
        panel_of(tmp_path, text)
    for decimal, first in (("point", 1015), ("comma", 1.015)):
        assert panel_of(tmp_path, text, decimal=decimal).series[0].values[0, 0] == first
