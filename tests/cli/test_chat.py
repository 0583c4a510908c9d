"""``qkv chat``: answers of the queue in the form of the template, settings, and refusals."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from tests.cli.chats import TEMPLATE, rows, saved

import qkv
from qkv.cli.main import main
from qkv.generation.decode.sample import generate
from qkv.spec.generation import Generation
from qkv.tokenizers.chat_template import find_template


def test_each_line_is_answered_after_the_ones_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "run", TEMPLATE)
    run = qkv.load(folder)
    template, messages, wanted = find_template(run.tokenizer), [{"role": "system", "content": "s"}], list[str]()
    settings = Generation(max_new_tokens=6, temperature=0.0, stop_token_ids=(run.tokenizer.specials["eos"],))
    for line in ("the cat", "the mat"):
        messages.append({"role": "user", "content": line})
        (ids,) = generate(run.model, [template.ids(messages)], settings)
        wanted.append(run.tokenizer.decode(ids))
        messages.append({"role": "assistant", "content": wanted[-1]})
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\n\nthe mat\n"))
    line = ["chat", str(folder), "--system", "s", "--temperature", "0", "--max-new-tokens", "6"]
    file = tmp_path / "chat.jsonl"
    assert main([*line, "--save", str(file)]) == 0
    printed = capsys.readouterr()
    assert printed.out == "".join(f"{each}\n" for each in wanted)
    assert printed.err == ""  # figures are for terminals
    assert rows(file) == [{"messages": messages}]
    assert main(line) == 0  # no line of input is left
    assert capsys.readouterr().out == ""


def test_without_a_template_the_way_out_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "run", None)
    assert main(["chat", str(folder), "hello"]) == 2
    said = capsys.readouterr().err
    assert "has no chat template" in said
    assert "--chat-template FILE" in said
    file = tmp_path / "own.jinja"
    file.write_text(TEMPLATE)
    line = ["chat", str(folder), "the", "--chat-template", str(file), "--temperature", "0", "--max-new-tokens", "3"]
    assert main(line) == 0
    assert capsys.readouterr().out.endswith("\n")
    assert main([*line[:-1], "-3"]) == 2
    assert "--max-new-tokens: -3 given" in capsys.readouterr().err
    assert main(["chat", str(folder), "the " * 200, "--chat-template", str(file)]) == 2
    assert "begin a new chat" in capsys.readouterr().err
    tools = tmp_path / "tools.json"
    for text, sentence in (("[1]", "tool 1: 1 given"), ("{", "is not JSON"), ("{}", "a list of tools")):
        tools.write_text(text)
        assert main([*line, "--tools", str(tools)]) == 2
        assert sentence in capsys.readouterr().err
    tools.write_text('[{"type": "function", "function": {"name": "look"}}]')
    assert main([*line, "--tools", str(tools)]) == 2
    assert "does not support tools" in capsys.readouterr().err
    assert main([*line, "--save", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
