"""The command line called as a person calls it, and one small run for all that read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from qkv.cli.main import main

TEXT = "the quick brown fox jumps over the lazy dog; " * 40 + "\n"
RECIPE = """\
name: tiny
data: {source: SOURCE, tokenizer: characters}
model:
  width: 16
  context_length: 16
  blocks:
    - branches: [attention(2), feed_forward]
training:
  steps: 6
  batch_size: 2
  schedule: constant
  validation: {every: 3, batches: 2}
quick: {training.steps: 2}
"""


class Said(NamedTuple):
    """What one call printed, and its exit code."""

    code: int
    out: str
    err: str


Call = Callable[..., Said]


@pytest.fixture
def qkv(capsys: pytest.CaptureFixture[str]) -> Call:
    """``qkv("schema", "model")`` runs that command line in this process."""

    def call(*args: object) -> Said:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        return Said(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and a recipe of it."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "text.txt").write_text(TEXT)
    (folder / "tiny.yaml").write_text(RECIPE.replace("SOURCE", str(folder / "text.txt")))
    return folder


@pytest.fixture(scope="session")
def run(folder: Path) -> Path:
    """A finished run. Read only: a test that changes it copies it first."""
    assert main(["train", str(folder / "tiny.yaml"), "--out", str(folder / "run")]) == 0
    return folder / "run"
