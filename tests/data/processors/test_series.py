"""Rows that are series: reading, guessed columns, gaps, statistics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv.choosing.automatic_task import task_of, with_processor
from qkv.data.processors.processor import build_processor
from qkv.data.processors.series import SeriesProcessor
from qkv.data.records.columns.series_values import array_of, is_series
from qkv.data.records.formats import table_of
from qkv.data.records.model import Role
from qkv.data.records.open import open_records
from qkv.data.records.table import Row
from qkv.data.records.values import Unusable
from qkv.data.series.statistics import statistics
from qkv.spec.data import Data
from qkv.spec.signals.series import SIMPLE, Series
from qkv.system.errors import UserError

NAN = float("nan")
ROLES = (Series.role, Role("label", "label", ("label", "class", "y")))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, None, 3], [[1], [NAN], [3]]),
        ([[1, 2], [3, None]], [[1, 2], [3, NAN]]),
        ("[1, null, 2.5]", [[1], [NAN], [2.5]]),
        ("1, 2;3 nan", [[1], [2], [3], [NAN]]),
        ({"b": [1, 2], "a": [3, 4]}, [[3, 1], [4, 2]]),
        (np.arange(3, dtype=np.int16), [[0], [1], [2]]),
        (torch.ones(1, 2), [[1, 1]]),
        ([5], [[5]]),
    ],
)
def test_a_series_is_read_in_any_form(value: Any, expected: Any) -> None:
    np.testing.assert_array_equal(array_of(value, ("a", "b") if isinstance(value, dict) else ()), expected)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "the series is empty"),
        ([None, None], "the series holds no number"),
        ([1, "x"], "holds 'x', which is not a number"),
        ([[1, 2], [3]], "one step of the series has 1 channels and another has 2"),
        ([1, [2]], "both single numbers and lists"),
        ([[[1]]], r"the shape \(1, 1, 1\)"),
        ([1, float("inf")], "a number that is infinite"),
        ("[1, 2", "is not a list in JSON"),
        ("good", "holds 'good', which is not a number"),
        ({"a": [1, 2], "b": [1]}, "'b' has 1 steps and 'a' has 2"),
        ({"a": [1], "c": [1]}, "has the channels a, c, and the model reads a, b"),
        ({}, "the series is empty"),
        (object(), "object, not a list of numbers"),
    ],
)
def test_other_values_are_refused_in_one_sentence(value: Any, reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        array_of(value, ("a", "b"))


def test_lists_of_numbers_are_told_from_other_lists() -> None:
    assert all(map(is_series, ([1, 2.5], [None, 1], [[1], [2]], "[1, 2]", np.ones((2, 2)))))
    assert not any(map(is_series, (["a"], [True], [], [[]], "1 2", "[x", 3, None, [[["a"]]], {"a": [1]})))


def fitted(*values: Any) -> SeriesProcessor:
    found = build_processor(build_processor(Series()).fitted(values))
    assert isinstance(found, SeriesProcessor)
    return found


def test_series_are_standardised_by_channel_and_padded() -> None:
    rows = [[[1, 10], [3, 10]], [[5, 10], [7, 10], [None, 10]], [[3, 10]]]
    processor = fitted(*rows)
    seen = np.array([1, 3, 5, 7, 3])
    assert processor.spec.mean == pytest.approx((seen.mean(), 10))
    assert processor.spec.deviation == pytest.approx((seen.std(), 1))
    signal = processor.signal([processor.encode(row) for row in rows])
    assert signal.values.shape == (3, 3, 2)
    assert signal.lengths is not None
    assert signal.lengths.tolist() == [2, 3, 1]
    expected = (np.array([5, 7, 7]) - seen.mean()) / seen.std()  # a gap is the value before
    assert signal.values[1, :, 0].tolist() == pytest.approx(expected.tolist())
    assert processor.notes() == ["1 values of 1 series are missing; the value before is used"]
    assert processor.signal([processor.encode(rows[0])]).lengths is None
    assert build_processor(processor.spec).fitted(rows[:1]) == processor.spec
    with pytest.raises(Unusable, match="has 1 channels, and the model reads 2"):
        processor.encode([1, 2])
    assert processor.shown(rows[1]) == "3 steps of 2 channels: 5, 7, nan"
    assert (processor.picture(rows[0]) or "").startswith("data:image/svg+xml;base64,")


@pytest.mark.parametrize("length", [1, 2, 3, 50])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6])
def test_statistics_are_finite_for_any_series(length: int, scale: float) -> None:
    values = scale * np.random.default_rng(0).normal(size=(length, 2))
    found = statistics(values)
    assert found.shape == (2 * SIMPLE + 1,)
    assert Series(rows=True, channels=("a", "b")).num_simple == len(found)
    assert np.isfinite(found).all()


def test_statistics_are_those_of_loops() -> None:
    x = np.random.default_rng(1).normal(size=40).cumsum()
    found = statistics(x[:, None])[:-1]
    z = (x - x.mean()) / x.std()
    assert found[0] == pytest.approx(x.mean(), rel=1e-5)
    assert found[9] == pytest.approx(np.polyfit(np.linspace(-1, 1, 40), x, 1)[0], rel=1e-5)
    autocorrelation = found[16:24]
    for lag, value in zip((1, 2, 3, 4, 6, 8, 12, 16), autocorrelation, strict=True):
        assert value == pytest.approx(sum(z[t] * z[t + lag] for t in range(40 - lag)) / 40, rel=1e-4)
    assert found[-13:].mean() == pytest.approx(x.mean(), rel=1e-5)
    wave = statistics(np.sin(2 * np.pi * np.arange(64) / 4)[:, None])[24:32]
    assert wave.argmax() == 6  # a quarter of a turn each step: from 1/8 to 1/4 turns


def read(path: Path, **columns: str) -> Any:
    data = Data(source=str(path), columns=columns, processor=Series(), validation_fraction=0.2)
    return open_records(data, ROLES)


def wide(folder: Path, header: str = "label,t0,t1,t2,t3") -> Path:
    path = folder / "wide.csv"
    path.write_text(header + "\n" + "".join(f"{'ab'[i % 2]},{3 * i},{i + 1},,{i + 3}\n" for i in range(20)))
    return path


def test_columns_of_numbers_are_steps_and_are_told(tmp_path: Path) -> None:
    found = read(wide(tmp_path))
    assert found.columns == {"series": "t0..t3", "label": "label"}
    assert any("the 4 columns" in note or "'t0', 't1', 't2', 't3' are taken as steps" in note for note in found.notes)
    np.testing.assert_array_equal(array_of(found.splits["train"][0]["series"])[2], [NAN])
    part = read(wide(tmp_path), series="t0,t2..t3")
    assert len(part.splits["train"][0]["series"]) == 3
    with pytest.raises(UserError, match=r"data\.columns\.series: .* has no column 't9'"):
        read(wide(tmp_path), series="t0..t9")


def test_lists_in_several_columns_are_channels(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    rows = [{"id": i, "x": [i, 1], "z": [2, 3], "y": "ab"[i % 2]} for i in range(20)]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read(path)
    assert found.columns == {"series": "x,z", "label": "y"}
    assert found.splits["train"][0]["series"].keys() == {"x", "z"}
    assert any("the lists 'x', 'z' are taken as channels (guessed)" in note for note in found.notes)


def test_arrays_of_files_are_series(tmp_path: Path) -> None:
    values, labels = np.random.default_rng(0).normal(size=(20, 5, 2)), np.array(["a", "b"] * 10)
    np.savez(tmp_path / "s.npz", x=values, y=labels)
    found = read(tmp_path / "s.npz")
    assert found.columns == {"series": "series", "label": "y"}
    assert sorted(row["series"][0][0] for split in found.splits.values() for row in split) == sorted(values[:, 0, 0])
    assert len(found.splits["train"][0]["series"][0]) == 2
    np.save(tmp_path / "s.npy", values[..., 0])
    table = table_of(str(tmp_path / "s.npy"), Data(source="s"), ROLES[:1], "data.source")
    assert isinstance(table.rows[3], Row)
    np.testing.assert_allclose(table.rows[3].values["series"], values[3, :, 0])
    np.savez(tmp_path / "t.npz", a=values, b=values)
    with pytest.raises(UserError, match="has the arrays a, b, of which 2 are tables of numbers"):
        read(tmp_path / "t.npz")


@pytest.mark.parametrize(
    ("lines", "task", "found"),
    [
        ([{"v": [1, 2, 3], "label": "a"}], "classification", True),
        ([{"v": [[1, 2], [3, 4]], "value": 1.5}], "regression", True),
        ([{"text": "a sentence of several words, long enough", "label": "a", "ids": [1, 2]}], "classification", False),
        ([{"text": "a sentence of several words, long enough", "labels": [1, 2]}], "multilabel", False),
        ([{"text": "short", "stars": 3}], "regression", False),
    ],
)
def test_only_tables_of_series_are_recognised(tmp_path: Path, lines: Any, task: str, found: bool) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, lines * 30)))
    chosen = with_processor(Data(source=str(path)), task_of(task)).processor
    assert isinstance(chosen, Series) == found
    named = with_processor(Data(source=str(path), columns={"series": "v"}), task_of(task)).processor
    assert isinstance(named, Series)
