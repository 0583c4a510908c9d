"""The chat template of a tokenizer: where it is read, and that it goes along."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

import qkv
from qkv.data.vocabulary import Vocabulary
from qkv.spec import tokenizers as spec
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.model import Text
from qkv.system.errors import UserError
from qkv.tokenizers.chat import with_tools
from qkv.tokenizers.convert import convert_tokenizer
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}é\n{% endfor %}"
TEXT = "the cat sat on the mat, the dog sat on the log. " * 30


def chatting() -> Tokenizer:
    found = train(spec.BPE(vocab_size=270), [TEXT]).with_specials(("bos", "eos"))
    found.chat_template = TEMPLATE
    return found


def test_copies_of_a_tokenizer_keep_it(tmp_path: Path) -> None:
    tokenizer = chatting()
    again = pickle.loads(pickle.dumps(tokenizer))
    tokenizer.save(tmp_path)
    copies = [
        again,
        tokenizer.with_specials(("cls",)),
        tokenizer.framing,
        tokenizer.reading_special,
        Tokenizer.load(tmp_path),
        Tokenizer.load(tmp_path / "tokenizer.json"),
        convert_tokenizer(tokenizer),
        convert_tokenizer(tmp_path),
    ]
    assert [each.chat_template for each in copies] == [TEMPLATE] * len(copies)
    assert train(spec.Bytes(), []).chat_template is None


NAMED = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"chat_template": "one"}, "one"),
        ({"chat_template": NAMED}, with_tools("b", "a")),
        ({"chat_template": [{"name": "tool_use", "template": "a"}]}, None),
        ({"chat_template": 3}, None),
        ({}, None),
    ],
)
def test_a_folder_may_name_it_in_its_settings(settings: dict[str, object], wanted: str | None, tmp_path: Path) -> None:
    train(spec.Bytes(), []).save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert Tokenizer.load(tmp_path).chat_template == wanted
    (tmp_path / "chat_template.jinja").write_text("own")
    assert Tokenizer.load(tmp_path).chat_template == "own"


def test_a_template_that_is_no_text_is_named(tmp_path: Path) -> None:
    train(spec.Bytes(), []).save(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"chat_template\.jinja cannot be read: it is not UTF-8"):
        Tokenizer.load(tmp_path)


def test_it_goes_along_from_a_run_through_training_quantising_and_export_and_back(tmp_path: Path) -> None:
    from qkv.cli.main import main

    tokenizer, text = chatting(), tmp_path / "text.txt"
    text.write_text(TEXT)
    block = qkv.Block(branches=(Attention(num_heads=2), FeedForward(activation="gelu_tanh")))
    text_of = Text(vocab_size=tokenizer.vocab_size)
    spec_of = qkv.Model(num_layers=1, width=32, context_length=32, frontend=text_of, blocks=(block,))
    base = qkv.save(qkv.build(spec_of), tmp_path / "base", tokenizer)
    recipe = qkv.Recipe.parse({"data": {"source": str(text)}, "start": str(base), "training": {"steps": 2}})
    tuned = qkv.train(recipe, tmp_path / "tuned")
    adapted = qkv.train(recipe, tmp_path / "adapted", ["training.adapt={kind: lora, rank: 2}"])
    quantized = qkv.quantize(tuned, tmp_path / "quantized", batches=1).run
    assert main(["export", str(tuned.folder), "--out", str(tmp_path / "hf"), "--no-check"]) == 0
    assert (
        main(["export", str(adapted.folder), "--out", str(tmp_path / "file.gguf"), "--format", "gguf", "--no-check"])
        == 0
    )
    assert main(["export", str(tmp_path / "file.gguf"), "--out", str(tmp_path / "again"), "--no-check"]) == 0
    assert main(["quantize", str(tmp_path / "file.gguf"), str(tmp_path / "small")]) == 0
    for folder in ("base", "tuned", "adapted", "quantized", "hf", "file.gguf", "again", "small"):
        assert qkv.load(tmp_path / folder).tokenizer.chat_template == TEMPLATE, folder
    assert quantized.tokenizer.chat_template == TEMPLATE
    assert Vocabulary.load(tuned.folder).digest() == tuned.vocabulary.digest()
