"""Fine-tuning of a language model on a running text: task, windows, refusals."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.conftest import qkv as qkv
from tests.training.test_start import published_bert, published_gpt2

import qkv as library
from qkv.choosing.finetune_text import finetuned_on_text
from qkv.spec.files.yaml_io import read_recipe
from qkv.system.errors import UserError

WORDS = ("film", "plot", "actors", "scene", "good", "bad")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "story.txt").write_text("the good film has a bad plot and good actors in a scene\n" * 60)
    published_gpt2(tmp_path / "gpt")
    published_bert(tmp_path / "bert", WORDS)
    return tmp_path


def test_a_model_is_trained_on_a_text_in_one_line(qkv: Call, here: Path) -> None:
    said = qkv("train", "finetune", "--from", "gpt", "--data", "story.txt", "training.steps=6", "--out", "out")
    assert said.code == 0, said.err
    recipe, before = read_recipe(here / "out"), library.load(here / "gpt").recipe
    assert (recipe.task.kind, recipe.start.checkpoint) == ("next_token", "gpt")
    assert recipe.model.context_length == before.model.context_length, "windows are shorter, the model is not"
    assert "is initialised with the weights of 'gpt'" in said.err
    run = library.load(here / "out")
    assert run.metrics[-1]["step"] == 6
    assert isinstance(library.generate(run, "the good", max_new_tokens=3), str)
    again = qkv("train", "finetune", "--from", "gpt", "--data", "story.txt", "training.steps=6", "--out", "out")
    assert again.code == 0, again.err


@pytest.mark.parametrize(("start", "kind"), [("gpt", "next_token"), ("bert", "masked_tokens")])
def test_the_task_is_that_of_the_model(here: Path, start: str, kind: str) -> None:
    recipe = finetuned_on_text("story.txt", start, "lora(2)")
    assert (recipe.task.kind, recipe.training.adapt.kind) == (kind, "lora")
    held = len(Path("story.txt").read_text()) / 10
    window = recipe.data.batching.tokens_of_window
    assert window is not None
    assert 1 <= window <= min(held / 2, recipe.model.context_length)


def test_what_is_no_text_is_told(qkv: Call, here: Path) -> None:
    said = qkv("train", "finetune", "--from", "gpt", "--data", "nothing.txt")
    assert (said.code, "nothing.txt" in said.err) == (2, True)
    with pytest.raises(UserError, match="'start' and 'adapt' apply to data"):
        library.train("char_shakespeare_cpu", start="gpt")
    with pytest.raises(UserError, match="name the model with 'start'"):
        library.train("story.txt", adapt="head")


def test_a_text_shorter_than_the_context_is_measured_in_shorter_windows(qkv: Call, here: Path) -> None:
    (here / "short.txt").write_text("the good film")
    said = qkv("quantize", "gpt", "small", "--data", "short.txt")
    assert said.code == 0, said.err
    assert "loss" in said.out


@pytest.mark.parametrize("start", ["gpt", "bert", "run"])
def test_every_command_that_info_proposes_works(qkv: Call, here: Path, start: str) -> None:
    """A published model without and with masks; and the run that its fine-tuning makes, used as it says."""
    if start == "run":
        said = qkv("train", "finetune", "--from", "gpt", "--data", "story.txt", "training.steps=2", "--out", "run")
        proposed = [said.out.partition("generate: ")[2].strip()]
    else:
        told = qkv("info", start).out.partition("commands")[2].partition("\n\n")[0]
        proposed = [line.strip() for line in told.splitlines() if line.strip().startswith("qkv ")]
        assert any("finetune" in line for line in proposed)
    assert proposed
    for line in proposed:
        words = shlex.split(line.replace("FILE", "story.txt").replace("…", "the good"))[1:]
        short = ["training.steps=2", "training.validation.every=2"] if words[0] == "train" else []
        words = [word.replace("Once upon a time", "the good") for word in words]
        done = qkv(*words, *short)
        assert done.code == 0, (line, done.err)
