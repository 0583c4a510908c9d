"""Measured choices outlive the process, for the same surroundings, and nothing in the cache can break a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.ops.clock import new_table

from qkv.ops.selection import choices, choices_cache
from qkv.ops.selection.choices import Choice, choose

AMONG = ("a", "b")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    new_process(monkeypatch)
    return tmp_path


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is chosen, and no file was read."""
    new_table(monkeypatch)
    monkeypatch.setattr(choices_cache, "_read", {})


def chosen(twin: str, case: str = "case", gain: float | None = 2.0) -> str:
    """The twin that is taken where a measurement would find ``twin``."""
    return choose("op", case, lambda: Choice("op", case, twin, "measured", gain), AMONG).twin


def test_the_next_process_takes_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (chosen("a"), chosen("b", "another")) == ("a", "b")
    new_process(monkeypatch)
    assert (chosen("b"), chosen("a", "another"), chosen("b", "a third")) == ("a", "b", "b")
    assert choices.all_choices()[0] == Choice("op", "case", "a", "measured", 2.0)


def test_what_was_not_measured_is_not_kept(cache: Path) -> None:
    chosen("a", gain=None)
    choose("op", "fixed", lambda: Choice("op", "fixed", "a", "by its shape"))
    assert list(cache.rglob("*")) == []


def test_each_processor_setting_version_and_number_of_threads_has_its_own(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    files = {choices_cache.choices_file()}
    with monkeypatch.context() as m:
        m.setattr(torch, "get_num_threads", lambda: 64)
        files.add(choices_cache.choices_file())
    for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"):
        with monkeypatch.context() as m:
            m.setenv(name, "less")
            files.add(choices_cache.choices_file())
    for name in ("processor_name", "version"):
        with monkeypatch.context() as m:
            m.setattr(choices_cache, name, lambda *args: "another")
            files.add(choices_cache.choices_file())
    assert len(files) == 6
    assert {file.parent for file in files} == {cache / "choices"}


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"choices": []}',
        '{"choices": {"op: case": 7}}',
        '{"choices": {"op: case": {"twin": "a"}}}',
        '{"choices": {"op: case": {"twin": "a", "reason": "r", "gain": "x"}}}',
        '{"choices": {"op: case": {"twin": "gone", "reason": "r", "gain": 2.0}}}',
    ],
)
def test_a_damaged_file_is_measured_over(damage: str) -> None:
    path = choices_cache.choices_file()
    path.parent.mkdir()
    path.write_text(damage)
    assert chosen("b") == "b"
    assert json.loads(path.read_text())["choices"]["op: case"] == {"twin": "b", "reason": "measured", "gain": 2.0}


def test_what_another_process_kept_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen("a", "one")
    new_process(monkeypatch)
    assert choices_cache.recall("op", "two") is None  # this process has read the file
    choices_cache.remember("op", "two", {"twin": "b", "reason": "r", "gain": 2.0})
    new_process(monkeypatch)
    assert (chosen("b", "one"), chosen("a", "two")) == ("a", "b")


def test_a_cache_that_cannot_be_written_costs_the_measurement_alone(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    (cache / "choices").write_text("a file where the folder should be")
    assert chosen("a") == "a"
    new_process(monkeypatch)
    assert chosen("b") == "b"


def test_what_is_forgotten_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen("a")
    choices_cache.forget()
    new_process(monkeypatch)
    assert chosen("b") == "b"


def test_a_runs_own_choices_come_before_those_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen("a")
    new_process(monkeypatch)
    choices.table().restore([{"op": "op", "case": "case", "twin": "b", "reason": "of the run", "gain": 1.5}])
    assert chosen("a") == "b"
