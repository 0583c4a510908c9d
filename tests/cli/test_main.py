"""Exit codes, one line for what goes wrong, and what is imported when."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from qkv.cli import main as cli
from qkv.cli.inspection import schema


def fresh(*args: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, which prints at its end whether torch was imported."""
    code = (
        "import sys\nfrom qkv.cli.main import main\ncode = main()\n"
        "sys.stderr.write('torch' in sys.modules and 'TORCH' or '')\nsys.exit(code)"
    )
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **(env or {})})


def test_the_overview_names_every_command(qkv: Call) -> None:
    said = qkv()
    assert (said.code, said.err) == (0, "")
    assert said == qkv("--help")
    for name, summary in cli.COMMANDS.items():
        assert f"\n  {name}" in said.out
        assert summary.split(",")[0][:40] in said.out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_with_an_example(qkv: Call, name: str) -> None:
    said = qkv(name, "--help")
    assert (said.code, said.err) == (0, "")
    assert f"Usage: qkv {name}" in said.out
    assert f"  Examples:\n    qkv {name}" in said.out
    assert all(len(line) <= 100 for line in said.out.splitlines())


def test_the_version(qkv: Call) -> None:
    assert qkv("--version") == (0, "qkv 0.1.0\n", "")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["trian"], "there is no command 'trian'; did you mean 'train'?"),
        (["zzz"], "there is no command 'zzz'; allowed: accept, ask, bench, chat, compare, compare-runs"),
        (["--hlep"], "there is no option '--hlep'; did you mean '--help'?"),
        (["generate", "x", "--tempreature", "1"], "there is no option '--tempreature'; did you mean '--temperature'?"),
        (["train", "x", "--training.steps=3"], "overrides are written without dashes, such as training.steps=500"),
        (["generate"], "missing argument 'RUN'; see 'qkv generate --help'"),
        (["generate", "x", "--top-k", "many"], "invalid value for '--top-k'"),
        (["schema", "modle"], "there is no schema 'modle'; did you mean 'model'?"),
        (["schema", "model", "more"], "unexpected extra argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_command_line_that_cannot_be_read(qkv: Call, args: list[str], sentence: str) -> None:
    said = qkv(*args)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("qkv: ")
    assert said.err.count("\n") == 1
    assert sentence in said.err


def test_a_file_or_a_run_in_the_place_of_a_command(qkv: Call, tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("x")
    assert f"to train on that file: qkv train {tmp_path / 'my.txt'}" in qkv(tmp_path / "my.txt").err
    (tmp_path / "spec.yaml").write_text("x")
    assert f"to generate text with that run: qkv generate {tmp_path}" in qkv(tmp_path).err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "qkv: interrupted\n"),
        (BrokenPipeError(), 141, ""),
        (MemoryError(), 2, "qkv: out of memory; reduce training.batch_size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, "qkv: out of memory"),
        (OSError(28, "No space left on device", "a/b"), 2, "qkv: a/b: no space left on device\n"),
        (
            ValueError("of all\nthings"),
            1,
            "qkv: this is a bug in qkv, not in your input: ValueError: of all things (schema.py:",
        ),
    ],
    ids=["ctrl-c", "broken pipe", "memory", "torch's memory", "disk", "fault"],
)
def test_what_goes_wrong_inside_is_one_line(
    qkv: Call, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(schema, "json_schema", fail)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.delenv("QKV_DEBUG", raising=False)
    said = qkv("schema")
    assert said.code == code
    assert said.err.startswith(line)
    assert said.err.count("\n") == bool(line)


def test_the_whole_story_on_request(qkv: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(schema, "json_schema", fail)
    monkeypatch.setenv("QKV_DEBUG", "1")
    said = qkv("schema")
    assert said.code == 1
    assert said.err.startswith("Traceback")
    assert said.err.endswith("ValueError: odd\n")


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = "import sys\nfrom qkv.cli.main import main\nsys.exit(main(['schema']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (141, b"")


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["schema"],
        ["schema", "model"],
        ["train", "--help"],
        ["generate", "--help"],
        ["train", "{folder}/bad.yaml"],
        ["train", "{folder}/tiny.yaml", "model.widht=3"],
        ["generate", "{folder}", "x"],
        ["generate", "{folder}", "x", "--temperature", "-1"],
    ],
    ids=" ".join,
)
def test_what_needs_no_torch_imports_none(folder: Path, args: list[str]) -> None:
    """How quick it is for that, ``benchmarks/startup.py`` measures."""
    (folder / "bad.yaml").write_text("data: x\n\tmodel: 3\n")
    done = fresh(*(arg.format(folder=folder) for arg in args))
    assert done.returncode in (0, 2), done.stderr
    assert "fault" not in done.stderr
    assert not done.stderr.endswith("TORCH")


def test_commands_are_imported_when_they_are_called() -> None:
    code = (
        "import sys\nfrom qkv.cli.main import main\nmain(['schema'])\n"
        "sys.exit(any(f'qkv.cli.{n}' in sys.modules for n in ('train', 'generate', 'cost')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize(("words", "offered"), [("qkv ev", "evaluate"), ("qkv generate --temp", "--temperature")])
def test_shells_complete_commands_and_options(words: str, offered: str) -> None:
    env = {"_QKV_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert fresh(env=env).stdout.split() == [offered]
