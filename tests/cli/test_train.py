"""``qkv train``: recipes, texts, folders; and the sentence that each bad input gets."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import RECIPE, TEXT, Call

from qkv.spec.files.yaml_io import read_recipe

FILES = {"health.jsonl", "metrics.jsonl", "model.safetensors", "report.html", "resume", "spec.yaml", "tokenizer.json"}


@pytest.fixture
def here(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the text and the recipe in it."""
    for name in ("text.txt", "tiny.yaml"):
        shutil.copy(folder / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_trains_and_says_how_it_went_and_how_to_go_on(qkv: Call, here: Path) -> None:
    said = qkv("train", "tiny.yaml")
    assert said.code == 0
    assert {path.name for path in (here / "runs" / "tiny").iterdir()} == FILES
    for words in (
        "runs/tiny",
        "parameters",
        "steps",
        "training time",
        "bits per character",
        "report: runs/tiny/report.html",
    ):
        assert words in said.out
    assert "qkv generate runs/tiny" in said.out
    assert "6/6" in said.err


def test_a_run_that_is_there_goes_on(qkv: Call, here: Path) -> None:
    qkv("train", "tiny.yaml", "--out", "a")
    finished = (here / "a" / "model.safetensors").read_bytes()
    again = qkv("train", "tiny.yaml", "--out", "a")
    assert again.code == 0
    assert "the run in a is finished" in again.err
    longer = qkv("train", "a", "training.steps=9")
    assert (longer.code, read_recipe(here / "a").training.steps) == (0, 9)
    assert (here / "a" / "model.safetensors").read_bytes() != finished


def test_overrides_and_the_short_form(qkv: Call, here: Path) -> None:
    said = qkv("train", "tiny.yaml", "--quick", "model.width=8", "model.blocks.norm=rms_norm")
    assert said.code == 0
    recipe = read_recipe(here / "runs" / "tiny-quick")
    assert (recipe.training.steps, recipe.model.width, recipe.model.blocks[0].norm.kind) == (2, 8, "rms_norm")


def test_a_fresh_run_sets_the_old_one_aside(qkv: Call, here: Path) -> None:
    qkv("train", "tiny.yaml", "--quick", "--out", "a")
    said = qkv("train", "tiny.yaml", "--quick", "--out", "a", "--fresh", "training.seed=5")
    assert said.code == 0
    assert "the previous run in a was moved to a.1" in said.err
    assert (read_recipe(here / "a").training.seed, read_recipe(here / "a.1").training.seed) == (5, 1337)


def test_a_text_alone_is_enough(qkv: Call, here: Path) -> None:
    changes = ["training.steps=2", "model.width=16", "model.num_layers=1", "model.blocks.attention.num_heads=2"]
    said = qkv("train", "text.txt", *changes)
    assert said.code == 0
    recipe = read_recipe(here / "runs" / "text")
    assert (recipe.data.source, recipe.name, recipe.training.steps) == ("text.txt", "text", 2)
    assert qkv("train", "text.txt").code == 0
    assert read_recipe(here / "runs" / "text") == recipe


def test_event_files_on_request(qkv: Call, here: Path) -> None:
    pytest.importorskip("tensorboard")
    assert qkv("train", "tiny.yaml", "--tensorboard", "--quick").code == 0
    assert list((here / "runs" / "tiny-quick" / "tensorboard").iterdir())


def text(content: bytes, *changes: str) -> Callable[[Path], list[str]]:
    def make(here: Path) -> list[str]:
        (here / "text.txt").write_bytes(content)
        return ["train", "tiny.yaml", f"data.source={here / 'text.txt'}", *changes]

    return make


def recipe(content: str) -> Callable[[Path], list[str]]:
    def make(here: Path) -> list[str]:
        (here / "bad.yaml").write_text(content)
        return ["train", "bad.yaml"]

    return make


def pipe(here: Path) -> list[str]:
    os.mkfifo(here / "pipe")
    return ["train", "pipe"]


def published(here: Path) -> list[str]:
    (here / "published").mkdir()
    (here / "published" / "model.safetensors").write_bytes(b"weights")
    return ["train", "tiny.yaml", "--out", "published"]


def command(*args: str) -> Callable[[Path], list[str]]:
    return lambda _: ["train", *args]


BAD = {
    "an empty text": (text(b""), "text.txt' is empty; a text needs at least 4 characters"),
    "one character": (text(b"x"), "holds 1 character"),
    "a text shorter than the context": (
        text(b"short " * 8, "model.context_length=64"),
        "or another data.validation_fraction",
    ),
    "not UTF-8": (text(b"caf\xe9 " * 300), "is not UTF-8"),
    "a directory": (command("."), "this is a folder, but not a run; give a recipe or model file; '.' holds tiny.yaml"),
    "a directory as text": (
        command("tiny.yaml", "data.source=."),
        "data.source: '.' is a directory; name one text file",
    ),
    "a pipe": (pipe, "data.source: 'pipe' is not a regular file, and a text is read more than once; name a text file"),
    "a folder of a published checkpoint": (published, "published holds a model.safetensors and no spec.yaml"),
    "a missing recipe": (command("tinny.yaml"), "tinny.yaml: there is no such file; did you mean 'tiny.yaml'?"),
    "a missing text": (
        command("test.txt"),
        "there is no file 'test.txt', and no recipe or known data set of that name; did you mean 'text.txt'?",
    ),
    "an unknown data set": (command("tinyshakespear"), "did you mean 'tinyshakespeare'?"),
    "a tab": (recipe("data: x\nmodel:\n\twidth: 3\n"), "bad.yaml:3: there is a tab here, but YAML allows only spaces"),
    "a key twice": (
        recipe("data: x\nname: a\nname: b\n"),
        "bad.yaml:3: the key 'name' is also set in line 2; remove one of them",
    ),
    "an unknown key": (recipe("data: x\nmodle: {}\n"), "bad.yaml:2: modle: unknown key; did you mean 'model'?"),
    "an empty recipe": (recipe(""), "bad.yaml: the file is empty"),
    "a width that heads do not divide": (command("tiny.yaml", "model.width=15"), "2 heads do not divide the width 15"),
    "a wrong type": (
        command("tiny.yaml", "training.steps=soon"),
        "override 'training.steps=soon': training.steps: 'soon' given",
    ),
    "a window of 0": (
        command("tiny.yaml", "model.blocks.mixer.mask=causal & window(0)"),
        "0 given, but it should be greater than 0",
    ),
    "a pattern that does not decode": (
        command("tiny.yaml", "model.blocks.mixer.mask=full"),
        "this branch sees later positions",
    ),
    "no assignment": (command("tiny.yaml", "--quick", "steps"), "override 'steps': there is no '=' in it"),
    "a file as folder": (command("tiny.yaml", "--out", "text.txt"), "a file exists where a folder is needed"),
    "a file above the folder": (
        command("tiny.yaml", "--out", "text.txt/run"),
        "a file exists where a folder is needed",
    ),
}


@pytest.mark.parametrize(("make", "sentence"), BAD.values(), ids=BAD.keys())
def test_bad_input_gets_a_sentence(qkv: Call, here: Path, make: Callable[[Path], list[str]], sentence: str) -> None:
    args = make(here)
    before = sorted(here.rglob("*"))
    said = qkv(*args)
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert [line[:5] for line in said.err.splitlines() if not line.startswith("reading ")] == ["qkv: "]
    assert [path for path in sorted(here.rglob("*")) if path.is_file()] == [path for path in before if path.is_file()]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for the superuser")
def test_a_read_only_folder(qkv: Call, here: Path) -> None:
    (here / "a").mkdir(mode=0o500)
    said = qkv("train", "tiny.yaml", "--out", "a/run")
    assert (said.code, said.out) == (2, "")
    assert "the folder is read-only or belongs to another user" in said.err


@pytest.mark.skipif(os.name != "posix", reason="signals of Unix")
def test_ctrl_c_saves_and_says_how_to_go_on(qkv: Call, here: Path) -> None:
    code = "import sys\nfrom qkv.cli.main import main\nsys.exit(main())"
    command = [sys.executable, "-c", code, "train", "tiny.yaml", "--out", "a", "training.steps=100000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(600):
            if (here / "a" / "metrics.jsonl").exists() and (here / "a" / "metrics.jsonl").stat().st_size:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "stopped by SIGINT after step" in err
    assert "Traceback" not in err
    assert list((here / "a" / "resume").glob("step-*"))


def test_another_recipe_over_the_same_folder(qkv: Call, here: Path) -> None:
    qkv("train", "tiny.yaml", "--quick", "--out", "a")
    kept = {path: path.read_bytes() for path in (here / "a").rglob("*") if path.is_file()}
    said = qkv("train", "tiny.yaml", "--quick", "--out", "a", "model.width=8")
    assert (said.code, said.out) == (2, "")
    assert "a holds a run of another recipe: model.width is 16 there and 8 here" in said.err
    assert {path: path.read_bytes() for path in (here / "a").rglob("*") if path.is_file()} == kept


def test_the_conftest_recipe_is_the_one_that_is_meant() -> None:
    assert "SOURCE" in RECIPE
    assert len(TEXT) > 1000


def test_a_result_is_recorded(qkv: Call, run: Path, folder: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text((folder / "tiny.yaml").read_text())
    said = qkv("record", run, recipe)
    assert (said.code, said.err) == (0, "")
    assert "full form, seed 1337" in said.out
    assert "validation  loss" in said.out
    assert "result:" in recipe.read_text()
    assert qkv("record", run).code == 2
    said = qkv("record", folder, recipe)
    assert said.code == 2
    assert "is not a run folder" in said.err
