"""A published folder without a tokenizer: loaded, written on from ids; only what needs text is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.interop.battery import every_case, made
from tests.interop.folders import tiny
from transformers import GPT2LMHeadModel

import qkv
from qkv.cli.main import main
from qkv.generation.decode.sample import generate
from qkv.interop.load import load_published
from qkv.spec.generation import Generation

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def test_it_writes_ids_after_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny(tmp_path / "bare")
    theirs = GPT2LMHeadModel.from_pretrained(folder).generate(
        torch.tensor([[5, 9, 3]]), max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    run = qkv.load(folder)
    assert [5, 9, 3, *qkv.generate(run, ids=[5, 9, 3], max_new_tokens=6, temperature=0.0)] == theirs[0].tolist()
    assert qkv.generate(folder, ids=[5], max_new_tokens=3, num_beams=2) != []
    assert main(["generate", str(folder), "--ids", "5, 9 3", "--max-new-tokens", "6", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.split() == [str(index) for index in theirs[0].tolist()]


@pytest.mark.parametrize(
    "words", [["generate", "FOLDER", "Once"], ["generate", "FOLDER"], ["generate", "FOLDER", "Once", "--special"]]
)
def test_what_needs_text_says_that_there_is_no_tokenizer(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny(tmp_path / "bare")
    assert main([word.replace("FOLDER", str(folder)) for word in words]) == 2
    assert "holds no tokenizer" in capsys.readouterr().err
    for needs in (
        lambda words: words.encode("a"),
        lambda words: words.specials,
        lambda words: words.decode([1]),
        lambda words: words.frame,
    ):
        with pytest.raises(qkv.UserError, match="holds no tokenizer"):
            needs(qkv.load(folder).tokenizer)


@pytest.mark.parametrize(("words", "sentence"), [
    (["--ids", "5 99"], "99 given; allowed: at least one id, each from 0 to 39"),
    (["--ids", ""], "none given; allowed: at least one id"),
    (["--ids", "5 x"], "'x' is not an id"),
    (["--ids", "5", "--stop", "a"], "'a' is a text"),
    (["text", "--ids", "5"], "a prompt cannot be combined with it"),
    (["--ids", "5", "--special"], "--special cannot be combined with it"),
])  # fmt: skip
def test_wrong_ids_are_refused(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(tiny(tmp_path / "bare")), *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_of_any_head_is_a_run(tmp_path: Path) -> None:
    for name in ("bert-classes", "t5"):
        case = next(case for case in every_case() if case.name == name)
        made(case, tmp_path / name)
        assert qkv.load(tmp_path / name).model.spec == load_published(tmp_path / name).spec


def test_stop_strings_of_the_recipe_do_not_hinder(tmp_path: Path) -> None:
    model = load_published(tiny(tmp_path / "bare")).model
    run = qkv.load(tmp_path / "bare")
    drawn = Generation(max_new_tokens=5, seed=4)
    assert (
        qkv.generate(run, ids=[1, 2], max_new_tokens=5, seed=4, temperature=1.0) == generate(model, [[1, 2]], drawn)[0]
    )
