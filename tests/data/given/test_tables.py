"""Rows of data in memory of every kind, and one sentence for all that is none."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import numpy as np
import pytest
from tests.data.given.frames import Dataset, Frame, NAType, Series, Stream, Value, named_entities

from qkv.data.given.plain import plain
from qkv.data.given.tables import is_given, rows_of, splits_of
from qkv.system.errors import UserError

ROWS = [{"text": "a", "n": 1}, {"text": "b", "n": None}]


def read(data: Any) -> list[dict[str, Any]]:
    return list(rows_of(data).rows)


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        (dict(row) for row in ROWS),
        {"text": ["a", "b"], "n": [1, float("nan")]},
        {"text": np.array(["a", "b"]), "n": Series([1, NAType()])},
        Frame({"text": ["a", "b"], "n": [np.int64(1), None]}),
        Dataset({"text": ["a", "b"], "n": [1, None]}, {"text": Value(), "n": Value()}),
        Stream(ROWS, None),
        Stream(ROWS, {"text": Value(), "n": Value()}),
    ],
    ids=["dicts", "generator", "columns", "arrays", "frame", "dataset", "stream", "stream with features"],
)
def test_tables_of_every_kind_give_the_same_rows(data: Any) -> None:
    assert is_given(data)
    found = rows_of(data)
    assert (found.columns, found.texts, list(found.rows)) == (("text", "n"), False, ROWS)


@pytest.mark.parametrize("data", [["a", "b"], ("a", "b"), np.array(["a", "b"]), Series(["a", "b"]), iter(["a", "b"])])
def test_texts_are_a_table_of_one_column(data: Any) -> None:
    found = rows_of(data)
    assert (found.columns, found.texts, list(found.rows)) == (("text",), True, [{"text": "a"}, {"text": "b"}])


def test_classes_that_are_stored_as_numbers_become_their_names() -> None:
    first, second = read(named_entities())
    assert first == {"tokens": ["a", "b"], "tags": ["O", "B-X"], "label": "yes"}
    assert second == {"tokens": ["c"], "tags": ["B-X"], "label": None}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (np.float32("nan"), None),
        (np.datetime64("NaT"), None),
        (NAType(), None),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array([[1, 2]]), [[1, 2]]),
        (decimal.Decimal("1.50"), "1.50"),
        (datetime.date(2024, 2, 3), "2024-02-03"),
        (("a", {"b": np.int8(1)}), ["a", {"b": 1}]),
    ],
)
def test_values_become_plain_data(value: Any, expected: Any) -> None:
    found = plain(value)
    assert (found, type(found)) == (expected, type(expected))
    assert json.loads(json.dumps(found)) == expected


def test_splits_are_told_from_columns() -> None:
    assert splits_of({"train": ROWS, "val": ROWS[:1]}) == {"train": ROWS, "validation": ROWS[:1]}
    columns = {"text": ["a"], "label": ["b"]}
    assert splits_of(columns) == {"train": columns}
    table = named_entities()
    assert splits_of({"train": table, "dev": table, "test": table}).keys() == {"train", "validation", "test"}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "data is empty"),
        ({}, "data is empty"),
        ([1, 2], "row 0 is a number, not a text or a dict"),
        (["a", 3], "row 1 .* is a number, and the rows before it are texts"),
        ([{"a": 1}, "b"], "row 1 .* is a text, and the rows before it are dicts"),
        ({"a": [1, 2, 3], "b": [1]}, "column 'b' has 1 values and column 'a' has 3; row 1 .* is incomplete"),
        ({"a": "b"}, "column 'a' is a text; a dict of columns holds one list per column"),
        ([{"a": 1}, {"a": {1, 2}}], "column 'a' of row 1 .* holds a set"),
        ([{"a": b"x"}], "column 'a' of row 0 .* holds bytes"),
        (Frame({1: ["x"], "1": ["y"]}), "two columns '1'"),
    ],
)
def test_one_sentence_for_what_is_no_table(data: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read(data)


@pytest.mark.parametrize(
    ("splits", "sentence"),
    [
        ({"train": named_entities(), "unsupervised": named_entities()}, "no split 'unsupervised' beside train"),
        ({"test": named_entities()}, "none called train"),
        ({"validation": ROWS, "dev": ROWS, "train": ROWS}, "no split 'dev' beside validation"),
    ],
)
def test_splits_with_other_names_are_refused(splits: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        splits_of(splits)


def test_frames_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["a", None], "day": pandas.to_datetime(["2024-02-03", None]), "n": [1.5, np.nan]})
    frame["kind"] = pandas.Categorical(["x", "y"])
    frame["known"] = pandas.array([True, pandas.NA], dtype="boolean")
    assert read(frame) == [
        {"text": "a", "day": "2024-02-03T00:00:00", "n": 1.5, "kind": "x", "known": True},
        {"text": None, "day": None, "n": None, "kind": "y", "known": None},
    ]
    assert rows_of(frame["text"]).texts
    with pytest.raises(UserError, match="two columns 'a'"):
        read(pandas.DataFrame([[1, 2]], columns=["a", "a"]))


def test_frames_of_polars() -> None:
    polars = pytest.importorskip("polars")
    assert read(polars.DataFrame({"text": ["a", "b"], "n": [1, None]})) == ROWS
    assert read(polars.Series(["a"])) == [{"text": "a"}]


def test_objects_of_datasets() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    table = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, -1]}, features=features)
    splits = splits_of(datasets.DatasetDict({"train": table, "test": table}))
    assert read(splits["test"]) == [{"text": "a", "label": "yes"}, {"text": "b", "label": None}]
