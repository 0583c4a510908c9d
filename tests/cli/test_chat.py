"""``qkv chat``: answers of the queue in the form of the template, and refusals."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import qkv
from qkv.cli.main import main
from qkv.generation.decode.sample import generate
from qkv.spec import tokenizers as spec
from qkv.spec.generation import Generation
from qkv.spec.model import Text
from qkv.tokenizers.chat_template import find_template
from qkv.tokenizers.train import train

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}A: {% endif %}"
)


def saved(folder: Path, template: str | None) -> Path:
    tokenizer = train(spec.BPE(vocab_size=270), ["the cat sat on the mat. " * 20]).with_specials(("eos",))
    tokenizer.chat_template = template
    model = qkv.build(
        qkv.Model(num_layers=1, width=32, context_length=128, frontend=Text(vocab_size=tokenizer.vocab_size))
    )
    return qkv.save(model, folder, tokenizer)


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
    assert main(line) == 0
    assert capsys.readouterr().out == "".join(f"{each}\n" for each in wanted)
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
