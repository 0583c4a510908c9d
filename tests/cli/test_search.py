"""``qkv search``."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    (tmp_path / "notes.txt").write_text("the dog\nthe quick fox\n\nlazy\n")
    return tmp_path / "notes.txt"


def test_the_text_itself_is_nearest(qkv: Call, run: Path, notes: Path) -> None:
    said = qkv("search", run, notes, "lazy", "the dog", "--top", "2")
    assert said.code == 0
    assert "index" in said.err
    first, second = said.out.split("\n\nthe dog\n")
    assert first.splitlines()[3].split() == ["1.000", "4", "lazy"]
    assert second.splitlines()[2].split() == ["1.000", "1", "the", "dog"]
    assert qkv("search", run, notes, "lazy", "the dog", "--top", "2").err == ""  # the index is there


def test_queries_from_standard_input_as_json(
    qkv: Call, run: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"lazy\nthe quick fox\n")))
    found = [json.loads(line) for line in qkv("search", run, notes, "-", "--top", "1", "--json").out.splitlines()]
    assert [(each["query"], each["hits"][0]["line"]) for each in found] == [("lazy", 4), ("the quick fox", 2)]
    assert found[0]["hits"][0]["score"] == pytest.approx(1.0, abs=1e-5)


def test_bad_input_gets_a_sentence(qkv: Call, run: Path, notes: Path) -> None:
    for line, sentence in (
        ((run, notes.with_name("none.txt"), "lazy"), "there is no file"),
        ((run, notes, "lazy", "--prompt", "query"), "has no prompts"),
        ((run, notes, "lazy", "--pooling", "men"), "did you mean 'mean'?"),
        ((notes.parent / "none", notes, "lazy"), "there is no run folder"),
    ):
        said = qkv("search", *line)
        assert (said.code, said.out) == (2, "")
        assert sentence in said.err
        assert said.err.count("\n") == 1
