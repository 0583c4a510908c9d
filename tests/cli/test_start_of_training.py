"""What ``qkv train`` says first: a line before slow work, and a table of examples without a verb."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.tables import write_tables

from qkv.api.recipes import find_recipe
from qkv.cli.shared import verbs
from qkv.system.errors import UserError

VERBS = {
    "reviews.csv": "classify",
    "prices.csv": "regress",
    "names.conll": "tag",
    "squad.json": "answer",
    "news.jsonl": "summarize",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", VERBS)
def test_a_table_without_a_verb_is_answered_with_the_command(qkv: Call, here: Path, name: str) -> None:
    said = qkv("train", name)
    assert said.code == 2
    assert [line[:5] for line in said.err.splitlines() if not line.startswith("reading ")] == ["qkv: "]
    assert said.err.endswith(f"to train on it, name the task: qkv train {VERBS[name]} --data {name}\n")
    assert not (here / "runs").exists()
    kind = verbs.VERBS[VERBS[name]].task
    with pytest.raises(UserError, match=f"name the task, such as task={kind!r}"):
        find_recipe(name)


@pytest.mark.parametrize("name", ["sst2", "my texts.jsonl", "reviews.csv.gz", "rows.json"])
def test_a_table_of_unclear_task_or_form_is_no_text(qkv: Call, here: Path, name: str) -> None:
    Path("my texts.jsonl").write_text('{"text": "hello you"}\n' * 30)
    Path("reviews.csv.gz").write_bytes(gzip.compress(Path("reviews.csv").read_bytes()))
    Path("rows.json").write_text(json.dumps([{"text": "a good film", "label": "good"}] * 30))
    said = qkv("train", name)
    assert said.code == 2
    assert " --data " in said.err
    assert ("'my texts.jsonl'" in said.err.partition("--data ")[2]) == (name == "my texts.jsonl")  # quoted for a shell


def test_texts_and_recipes_are_no_tables(here: Path) -> None:
    from qkv.api.recipes import table_without_task

    Path("words.csv").write_text("ann\nbob\neva\n")
    Path("recipe.json").write_text(json.dumps({"data": "a.txt"}, indent=1))
    Path("notes.txt").write_text("a,b\n1,2\n")
    names = ("words.csv", "recipe.json", "notes.txt", "a.txt", "sorting", "tinyshakespeare", "none.csv")
    assert [name for name in names if table_without_task(name)] == []


def test_a_line_comes_before_slow_work(here: Path) -> None:
    """The line is printed when torch is not imported yet, and nothing is printed for a name that is not there."""
    code = """
import sys
from qkv.cli.main import main
class Heard:
    def write(self, text):
        text = text.decode() if isinstance(text, bytes) else text
        if text.strip(): sys.stdout.write(f"{'torch' in sys.modules} {text.strip()}\\n")
    def flush(self): pass
sys.stderr = Heard()
main(["train", "none.txt"])
main(["train", "classify", "--data", "reviews.csv", "--value", "stars"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    missing, first, refused = done.stdout.splitlines()
    assert missing.startswith("False qkv: there is no file 'none.txt'")
    assert first == "False reading reviews.csv and preparing the training"
    assert refused.startswith("False qkv: 'value' is not an argument of the task 'classify'")
