"""Rows held out by group or by time: whole groups, the last rows, and what becomes of rows without either."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.records.cases import CLASSIFY, SCORE, read, write

from qkv.data.records.split import hold_out_last
from qkv.spec.data import Data
from qkv.spec.errors import SpecError
from qkv.system.errors import UserError

AUTHORS = ("Ann", "Bob", "Eva", "Max", "Zoe")
ROWS = "".join(f"text {i},{'ab'[i % 2]},{AUTHORS[i % 5]},{2000 + i}\n" for i in range(40))
TABLE = "text,label,author,year\n" + ROWS


@given(times=st.lists(st.integers(0, 20), min_size=2, max_size=60), fraction=st.floats(0.05, 0.6))
def test_the_last_rows_are_held_out_and_equal_times_stay_together(times: list[int], fraction: float) -> None:
    if len(set(times)) == 1:
        with pytest.raises(UserError, match="all rows have the same time"):
            hold_out_last(times, fraction)
        return
    split = hold_out_last(times, fraction)
    assert sorted(split.train + split.validation) == list(range(len(times)))
    assert max(times[i] for i in split.train) < min(times[i] for i in split.validation)
    wanted = min(max(round(fraction * len(times)), 1), len(times) - 1)
    sizes = [sum(time >= border for time in times) for border in set(times)]
    best = min(abs(size - wanted) for size in sizes if size < len(times))
    assert abs(len(split.validation) - wanted) == best


def test_groups_and_times_of_a_table(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", TABLE)
    by_author = read(source, CLASSIFY, split={"group": "author"}, validation_fraction=0.2)
    authors = {line.split(",")[0]: line.split(",")[2] for line in ROWS.splitlines()}
    sides = [{authors[row["text"]] for row in by_author.splits[name]} for name in ("train", "validation")]
    assert (len(sides[0]), len(sides[1]), sides[0] & sides[1]) == (4, 1, set())
    assert "8 of 40 rows were held out for validation, with no author in both splits" in by_author.notes
    by_year = read(source, CLASSIFY, split={"time": "year"}, validation_fraction=0.1)
    assert [row["text"] for row in by_year.splits["validation"]] == [f"text {i}" for i in range(36, 40)]
    assert "4 of 40 rows were held out for validation, the last by year" in by_year.notes
    digests = {read(source, CLASSIFY).digest, by_author.digest, by_year.digest}
    assert len(digests) == 3
    assert read(source, CLASSIFY, split={"group": "author"}, validation_fraction=0.2).splits == by_author.splits


def test_dates_are_ordered_as_dates(tmp_path: Path) -> None:
    dates = [
        "2024-02-01",
        "2023-12-31T23:00:00",
        "2024-01-31T23:30:00+00:00",
        "2024-02-01T00:30:00+02:00",
        "2020-01-01",
    ]
    source = write(tmp_path / "a.csv", "text,score,day\n" + "".join(f"t{i},{i},{day}\n" for i, day in enumerate(dates)))
    for fraction, held in ((0.2, ["t0"]), (0.4, ["t2", "t0"]), (0.6, ["t3", "t2", "t0"])):
        records = read(source, SCORE, split={"time": "day"}, validation_fraction=fraction)
        assert [row["text"] for row in records.splits["validation"]] == held


def test_the_column_of_the_split_is_not_guessed_as_a_role(tmp_path: Path) -> None:
    names = ("text", "kind", "source")
    rows = "".join(f"a long text about {i} things,{'ab'[i % 2]},{'xyz'[i % 3]}\n" for i in range(60))
    source = write(tmp_path / "a.csv", ",".join(names) + "\n" + rows)
    with pytest.raises(UserError, match="'kind', 'source' could be label"):
        read(source, CLASSIFY)
    assert read(source, CLASSIFY, split={"group": "source"}).columns == {"text": "text", "label": "kind"}


def test_rows_without_a_place_and_labels_of_the_future_are_left_out(tmp_path: Path) -> None:
    rows = "".join(f"t{i},{'ab'[i % 2]},{i}\n" for i in range(18)) + "u,a,\nv,b,NaN\nw,c,30\nx,a,31\n"
    records = read(write(tmp_path / "a.csv", "text,label,when\n" + rows), CLASSIFY, split={"time": "when"})
    assert [row["text"] for row in records.splits["validation"]] == ["x"]
    said = "\n".join(records.notes)
    assert "2 of 22 rows of" in said
    assert "have no time and were left out (first: line 20)" in said
    assert "1 held-out rows of" in said
    assert "have a label that no training row has; they are left out" in said


def test_copies_on_both_sides_of_a_split_by_group_are_reported(tmp_path: Path) -> None:
    rows = "".join(f"same,{'ab'[i % 2]},g{i % 4}\nother {i},a,g{i % 4}\n" for i in range(20))
    records = read(write(tmp_path / "a.csv", "text,label,g\n" + rows), CLASSIFY, split={"group": "g"})
    assert any("rows of validation have the same input as a training row" in note for note in records.notes)


@pytest.mark.parametrize(
    ("content", "fields", "sentence"),
    [
        (TABLE, {"split": {"group": "autor"}}, "data.split: {} has no column 'autor'; did you mean 'author'?"),
        (TABLE, {"split": {"group": "author"}, "validation": "self"}, "data.split holds out validation rows"),
        (TABLE, {"split": {"time": "author"}}, "line 2: time is 'Ann', not a number or a date such as 2024-12-31"),
        ("text,label,g\nx,a,1\ny,b,1\n", {"split": {"group": "g"}}, "all rows have the same g"),
        ("text,label,g\nx,a,1\ny,b,1\n", {"split": {"time": "g"}}, "all rows have the same time"),
        ("text,label,g\nx,a,1\ny,b,2\n", {"split": {"time": "g"}}, "no held-out row has a label of the training rows"),
        ("text,label,g\nx,a,1\ny,a,2024-01-01\n", {"split": {"time": "g"}}, "time is '1', not a number or a date"),
    ],
)
def test_a_split_that_cannot_be_made(content: str, fields: dict[str, object], sentence: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", content)
    fields = {name: source if value == "self" else value for name, value in fields.items()}
    with pytest.raises(UserError) as caught:
        read(source, CLASSIFY, columns={"text": "text", "label": "label"}, **fields)
    assert sentence.format(source) in str(caught.value)


def test_a_split_is_by_one_column() -> None:
    with pytest.raises(SpecError, match=r"split\.time: rows are split by group or by time; give one of them"):
        Data.parse({"source": "a.csv", "split": {"group": "a", "time": "b"}}, "data")
    assert Data(source="a.csv").essential() == {"source": "a.csv"}
