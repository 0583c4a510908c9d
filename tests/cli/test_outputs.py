"""Files that a command is asked to write: refused before slow work begins, and never written over its input."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.cli.conftest import Call

COMMANDS = {
    "evaluate": ("evaluate", "RUN", "--data", "in.txt", "--report", "OUT"),
    "embed": ("embed", "RUN", "the fox", "--out", "OUT.npy"),
    "predict": ("predict", "RUN", "--data", "in.csv", "--out", "OUT.csv"),
    "tokenizer": ("tokenizer", "train", "in.txt", "--vocab-size", "300", "--out", "OUT"),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("in.txt", "in.csv"):
        (tmp_path / name).write_text("the fox\n" * 40)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("place", "reason"), [("folder", "is a folder"), ("pipe", "is a device or a pipe"), ("no/file", "no folder 'no'")]
)
def test_what_cannot_be_a_file(qkv: Call, run: Path, here: Path, command: str, place: str, reason: str) -> None:
    line = [word.replace("OUT", place).replace("RUN", str(run)) for word in COMMANDS[command]]
    out = Path(line[-1])
    if place == "folder":
        out.mkdir()
    elif place == "pipe":
        os.mkfifo(out)
    said = qkv(*line)
    assert said.code == 2
    assert line[-2] in said.err
    assert reason in said.err
    assert out.exists() == (place != "no/file")


@pytest.mark.parametrize("command", ["evaluate", "predict", "tokenizer"])
def test_the_file_that_is_read_is_not_overwritten(qkv: Call, run: Path, here: Path, command: str) -> None:
    source = "in.csv" if command == "predict" else "in.txt"
    line = [word.replace("RUN", str(run)) for word in COMMANDS[command]]
    said = qkv(*line[:-1], f"./{source}")
    assert said.code == 2
    assert "is an input file" in said.err
    assert (here / source).read_text() == "the fox\n" * 40


def test_a_word_of_thousands_of_letters_is_quoted_in_part(qkv: Call) -> None:
    said = qkv("info", "x" * 250 + "/" + "y" * 4000)
    assert said.code == 2
    assert len(said.err) < 400
