"""``qkv swap``."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Call


def test_the_table_and_the_way_on_are_printed(qkv: Call, run: Path, tmp_path: Path) -> None:
    said = qkv("swap", run, "blocks.*.mixer=linear_attention", "--heal", 2, "--out", tmp_path / "new")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0] == str(tmp_path / "new")
    assert lines[2].split() == ["figure", "before", "after", "the", "swap", "healed"]
    assert {line.split("  ")[0] for line in lines[3:10]} >= {
        "held-out loss",
        "perplexity",
        "decoding, tokens/s",
        "reading, tokens/s",
    }
    assert f"resume: qkv train {tmp_path / 'new'} training.steps=…" in said.out
    assert "parameters keep their weights" in said.err
    assert qkv("generate", tmp_path / "new", "the", "--max-new-tokens", 3).code == 0


def test_the_folder_has_a_name_by_default(
    qkv: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert qkv("swap", run, "blocks.0.mixer=gru", "--heal", 0).code == 0
    assert (tmp_path / "runs" / f"{run.name}-swapped" / "spec.yaml").is_file()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("blocks.0.mixer=gruu",), "there is no branch 'gruu'; did you mean 'gru'?"),
        (("gru",), "there is no '=' in it"),
        (("blocks.0.mixer=gru", "--heal", "-3"), "heal is -3 steps, but must lie between 0"),
        (
            ("blocks.0.mixer=gru", "--heal", "9" * 12),
            "heal is 999999999999 steps, but must lie between 0, for no training, and",
        ),
        ((), "missing argument"),
    ],
)
def test_bad_input_is_one_sentence(
    qkv: Call, run: Path, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    said = qkv("swap", run, *arguments, "--out", tmp_path / "new")
    assert said.code == 2
    assert sentence in said.err.lower() or sentence in said.err
    assert "Traceback" not in said.err
