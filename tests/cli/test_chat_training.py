"""``qkv train chat`` and ``qkv train prefer``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.tasks.chats.chat_runs import TEMPLATE, start, talk, write
from tests.tasks.chats.test_preference import PAIRS

SHORT = ("training.steps=2", "training.minutes=null", "training.validation.every=1", "training.adapt=whole")
TALKS = [talk("the cat", "sat"), talk("the dog", "ran to the house"), talk("a", "b"), talk("x", "y")] * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A start, its data, and the same start without a template. Read only."""
    place = tmp_path_factory.mktemp("chats")
    start(place / "start")
    start(place / "plain", template=None)
    write(place / "talks.jsonl", TALKS)
    write(place / "pairs.jsonl", PAIRS * 4)
    (place / "own.jinja").write_text(TEMPLATE)
    return place


def test_a_trained_chat_says_what_it_learned_and_chats(qkv: Call, folder: Path, tmp_path: Path) -> None:
    line = ("train", "chat", "--data", folder / "talks.jsonl", "--from", folder / "start", "--out", tmp_path / "run")
    said = qkv(*line, "--learn", "last", *SHORT)
    assert said.code == 0, said.err
    assert "tokens are targets" in said.err
    assert "the end is a target in all" in said.err
    assert "loss of start" in said.out
    report = (tmp_path / "run" / "report.html").read_text()
    assert "answer before training" in report
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["splits"].keys() == {"validation"}
    answer = qkv("chat", tmp_path / "run", "the cat", "--temperature", "0", "--max-new-tokens", "4")
    assert answer.code == 0, answer.err
    assert f"qkv chat {tmp_path / 'run'}" in said.out
    predicted = qkv("predict", tmp_path / "run", "the cat", "--json")
    assert predicted.code == 0, predicted.err
    assert isinstance(json.loads(predicted.out)["answer"], str)
    again = qkv(*line, "--learn", "last", *SHORT)
    assert again.code == 0, again.err


def test_a_trained_preference_says_how_much_is_preferred(qkv: Call, folder: Path, tmp_path: Path) -> None:
    line = ("train", "prefer", "--data", folder / "pairs.jsonl", "--from", folder / "start", "--loss", "simpo")
    said = qkv(*line, "--out", tmp_path / "run", *SHORT)
    assert said.code == 0, said.err
    assert "accuracy" in said.out
    assert "log probability chosen" in said.out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--from", "start", "--learn", "questions"), "task.learn"),
        (("--from", "plain"), "--chat-template FILE"),
        (("--from", "start", "--chat-template", "missing.jinja"), "missing.jinja"),
        ((), "--from"),
    ],
)
def test_bad_input_is_one_sentence(
    qkv: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(folder)
    said = qkv("train", "chat", "--data", "talks.jsonl", "--out", tmp_path / "run", *options, *SHORT)
    assert said.code == 2
    assert sentence in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "run" / "spec.yaml").exists()


def test_a_template_of_ones_own_goes_along(qkv: Call, folder: Path, tmp_path: Path) -> None:
    own = ("--from", folder / "plain", "--chat-template", folder / "own.jinja", "--out", tmp_path / "run")
    assert qkv("train", "chat", "--data", folder / "talks.jsonl", *own, *SHORT).code == 0
    assert qkv("chat", tmp_path / "run", "the cat", "--max-new-tokens", "2").code == 0
