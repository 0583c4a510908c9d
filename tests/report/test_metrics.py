"""The log of a run survives crashes, resumes and full disks."""

from __future__ import annotations

import builtins
import errno
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.report.metrics import MetricsLog, TensorBoardLog, read_metrics
from qkv.system.errors import UserError

values = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
names = st.text(min_size=1).filter(lambda name: name != "nonfinite")


def logged(path: Path, rows: list[dict[str, Any]]) -> Path:
    with MetricsLog(path) as log:
        for row in rows:
            log.write(**row)
    return path


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (a == b or (a != a and b != b))


@given(st.lists(st.dictionaries(names, values, max_size=5), max_size=8))
def test_what_was_written_is_read(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / "metrics.jsonl"
    path.unlink(missing_ok=True)
    logged(path, rows)
    back = read_metrics(path)
    assert [list(row) for row in back] == [list(row) for row in rows]
    assert all(same(got[key], row[key]) for got, row in zip(back, rows, strict=True) for key in row)


def test_the_file_is_strict_json_with_flags(tmp_path: Path) -> None:
    path = logged(tmp_path / "m.jsonl", [{"step": 1, "loss": math.nan, "lr": -math.inf, "event": "NaN"}])

    def refuse(word: str) -> None:
        raise AssertionError(word)

    row = json.loads(path.read_text(), parse_constant=refuse)
    assert row == {"step": 1, "loss": None, "lr": None, "event": "NaN", "nonfinite": {"loss": "nan", "lr": "-inf"}}


def test_numbers_of_other_libraries_are_numbers(tmp_path: Path) -> None:
    given_row = {
        "a": np.float32(0.5),
        "b": np.int64(3),
        "c": torch.tensor(2.5),
        "d": np.float64(0.1),
        "e": torch.tensor(math.nan),
    }
    (row,) = read_metrics(logged(tmp_path / "m.jsonl", [given_row]))
    assert {key: row[key] for key in "abcd"} == {"a": 0.5, "b": 3, "c": 2.5, "d": 0.1}
    assert math.isnan(row["e"])


@pytest.mark.parametrize("value", [[1], {"a": 1}, torch.zeros(2), object()])
def test_other_values_are_refused_and_nothing_is_written(tmp_path: Path, value: Any) -> None:
    with MetricsLog(tmp_path / "m.jsonl") as log:
        with pytest.raises(TypeError, match=r"loss is a .*; a row holds numbers"):
            log.write(loss=value)
        with pytest.raises(ValueError, match="nonfinite"):
            log.write(nonfinite=1)
    assert read_metrics(log.path) == []


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_torn_last_line_is_left_out_and_repaired(tmp_path: Path, cut: int) -> None:
    rows = [{"step": s, "loss": 1.0 / s} for s in range(1, 4)]
    path = logged(tmp_path / "m.jsonl", rows)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    left = read_metrics(path)
    assert left == rows[: len(left)]
    assert len(left) == whole[:-cut].count(b"}")
    with MetricsLog(path) as log:
        log.write(step=9)
    assert read_metrics(path) == [*left, {"step": 9}]
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\n\n", b'{"step": ' + b"7" * 9000, b'{"event": "\xff'])
def test_what_a_power_cut_leaves_is_removed(tmp_path: Path, tail: bytes) -> None:
    path = logged(tmp_path / "m.jsonl", [{"step": 1}])
    path.write_bytes(path.read_bytes() + tail)
    assert read_metrics(path) == [{"step": 1}]
    logged(path, [{"step": 2}])
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]


def test_a_bad_line_in_the_middle_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\nstep two\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"m\.jsonl:2: this line is not a JSON object"):
        read_metrics(path)


def test_the_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("First line.\nSecond line")
    with pytest.raises(UserError, match="not a metrics log"):
        MetricsLog(path)
    assert path.read_text() == "First line.\nSecond line"


def test_rows_after_a_checkpoint_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with MetricsLog(path) as log:
        for step in range(1, 6):
            log.write(step=step)
            log.write(event=f"after {step}")
        log.truncate_after(3)
        log.write(step=4, second=True)
    expected = [row for step in range(1, 4) for row in ({"step": step}, {"event": f"after {step}"})]
    assert read_metrics(path) == [*expected, {"step": 4, "second": True}]
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]


def test_dropping_nothing_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m.jsonl") as log:
        log.write(step=1)
        log.flush()
        before = log.path.stat().st_ino
        log.truncate_after(1)
        assert log.path.stat().st_ino == before
        log.truncate_after(0)
    assert read_metrics(log.path) == []


def test_a_crash_while_dropping_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MetricsLog(tmp_path / "m.jsonl") as log:
        log.write(step=1)
        log.write(step=2)
        log.flush()
        monkeypatch.setattr(
            Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))
        )
        with pytest.raises(OSError, match="No space"):
            log.truncate_after(1)
        log.write(step=3)
    assert read_metrics(log.path) == [{"step": 1}, {"step": 2}, {"step": 3}]
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]


def test_the_disk_has_the_new_file_before_it_takes_the_old_ones_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append("sync"), sync(file)))
    monkeypatch.setattr(Path, "replace", lambda old, new: (done.append("replace"), replace(old, new)))
    with MetricsLog(tmp_path / "m.jsonl") as log:
        log.write(step=1)
        log.flush()
        assert done == []
        log.flush(durable=True)
        log.truncate_after(0)
    assert done == ["sync", "sync", "replace", "sync"]


def test_rows_wait_at_most_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with MetricsLog(tmp_path / "m.jsonl") as log:
        log.write(step=1)
        assert log.path.stat().st_size == 0
        now[0] = 101.0
        log.write(step=2)
        assert len(read_metrics(log.path)) == 2
        log.write(step=3)
        assert len(read_metrics(log.path)) == 2
        log.flush(durable=True)
        assert len(read_metrics(log.path)) == 3


def test_a_full_disk_is_an_error_and_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MetricsLog(tmp_path / "m.jsonl")
    log.write(step=1, event="x" * 100)
    written: list[int] = []
    write = os.write

    def short(file: int, data: bytes) -> int:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(1)
        return write(file, bytes(data[:40]))

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(OSError, match=r"No space left on device.*m\.jsonl"):
        log.flush()
    monkeypatch.setattr(os, "write", write)
    log.close()
    log.close()
    assert read_metrics(log.path) == [{"step": 1, "event": "x" * 100}]


def test_there_is_no_log_to_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_metrics(tmp_path / "m.jsonl")


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TensorBoardLog(tmp_path)
    log.write(step=3, loss=1.5, val_loss=None, sample="To be")
    log.write(step=4, loss=1.25)
    log.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(3, 1.5), (4, 1.25)]
    assert "val_loss" not in events.Tags()["scalars"]


def test_without_tensorboard_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if "tensorboard" in name:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if "tensorboard" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install qkv\[tensorboard\]"):
        TensorBoardLog(tmp_path)
