"""Folders of Hugging Face's form, by transformers or by hand in the older form, read as transformers reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.tokenizers.texts import BY_HAND

from qkv.system.errors import UserError
from qkv.tokenizers.byte_level import SYMBOLS
from qkv.tokenizers.coders import ByteCoder
from qkv.tokenizers.tokenizer import Tokenizer

BERT = {
    piece: index
    for index, piece in enumerate(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "to", "be", "##e", "é", "e", ",", "漢"]
    )
}
GPT2 = {symbol: index for index, symbol in enumerate([*SYMBOLS, "be", "Ġbe", "<|endoftext|>"])}
ROBERTA = {
    symbol: index for index, symbol in enumerate(["<s>", "<pad>", "</s>", "<unk>", *SYMBOLS, "be", "Ġbe", "<mask>"])
}
MERGES = [("b", "e"), ("Ġ", "be")]
PIECES = [("▁", -2.0), ("▁to", -1.0), ("be", -3.0), ("<", -4.0), ("/", -4.0), ("s", -4.0), (">", -4.0)]
T5 = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *PIECES]
XLNET = [(special, 0.0) for special in ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>")] + PIECES

MAKERS: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertTokenizer(vocab=BERT),
    "cased bert": lambda: transformers.BertTokenizer(vocab=BERT, do_lower_case=False),
    "gpt2": lambda: transformers.GPT2Tokenizer(vocab=GPT2, merges=MERGES),
    "perceiver": lambda: transformers.PerceiverTokenizer(),
    "roberta": lambda: transformers.RobertaTokenizer(vocab=ROBERTA, merges=MERGES),
    "t5": lambda: transformers.T5Tokenizer(vocab=T5, extra_ids=3),
    "xlnet": lambda: transformers.XLNetTokenizer(vocab=XLNET),
}
ROLES = ("pad", "bos", "eos", "cls", "sep", "mask", "unk")
TEXTS = [text for text in BY_HAND if "<" not in text] + ["To be, bé bee to be", "be be 漢字 È"]


@pytest.mark.parametrize("name", MAKERS)
def test_a_folder_of_transformers_has_its_ids_and_roles(name: str, tmp_path: Path) -> None:
    theirs = MAKERS[name]()
    theirs.save_pretrained(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)
    assert tokenizer.specials == {
        role: index for role in ROLES if (index := getattr(theirs, f"{role}_token_id")) is not None
    }
    assert tokenizer.vocab_size == len(theirs)


@pytest.mark.parametrize("name", MAKERS)
def test_what_was_read_from_a_folder_is_kept_in_one_file(name: str, tmp_path: Path) -> None:
    MAKERS[name]().save_pretrained(tmp_path / "theirs")
    tokenizer = Tokenizer.load(tmp_path / "theirs").with_specials(["bos", "mask"])
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path)
    assert again.specials == tokenizer.specials
    assert type(again._coder) is type(tokenizer._coder)
    assert again.encode("To be <s> </s> [CLS] be") == tokenizer.encode("To be <s> </s> [CLS] be")
    transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize("name", MAKERS)
def test_no_text_spells_a_special_token_of_theirs(name: str, tmp_path: Path) -> None:
    theirs = MAKERS[name]()
    theirs.save_pretrained(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    special = set(theirs.all_special_ids) - {tokenizer.unknown_id}
    contents = theirs.convert_ids_to_tokens(sorted(special))
    for text in (*contents, " ".join(contents), "be".join(contents)):
        assert not special & set(tokenizer.encode(text))
        assert special & set(theirs.encode(text, add_special_tokens=False))


def test_sentinels_of_t5_are_special(tmp_path: Path) -> None:
    MAKERS["t5"]().save_pretrained(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.with_specials(["pad", "eos"], ["<extra_id_0>", "<extra_id_2>"]) is tokenizer
    sentinel = tokenizer.core.token_to_id("<extra_id_1>")
    assert tokenizer.decode([*tokenizer.encode("to be"), sentinel], skip_special=True) == "to be"


def older(folder: Path, kind: str, settings: dict[str, Any]) -> Path:
    if kind == "wordpiece":
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in BERT), encoding="utf-8")
    else:
        (folder / "vocab.json").write_text(json.dumps(GPT2 if kind == "gpt2" else ROBERTA), encoding="utf-8")
        merges = "".join(f"{a} {b}\n" for a, b in MERGES)
        (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


OLDER: dict[str, tuple[str, dict[str, Any], Any]] = {
    "bert": ("wordpiece", {"do_lower_case": True}, transformers.BertTokenizer),
    "cased bert": (
        "wordpiece",
        {"do_lower_case": False, "tokenizer_class": "BertTokenizer"},
        transformers.BertTokenizer,
    ),
    "bert that keeps accents": ("wordpiece", {"strip_accents": False}, transformers.BertTokenizer),
    "bert that leaves ideographs together": (
        "wordpiece",
        {"tokenize_chinese_chars": False},
        transformers.BertTokenizer,
    ),
    "gpt2": (
        "gpt2",
        {"bos_token": "<|endoftext|>", "eos_token": {"__type": "AddedToken", "content": "<|endoftext|>"}},
        transformers.GPT2Tokenizer,
    ),
    "roberta": (
        "roberta",
        {"tokenizer_class": "RobertaTokenizerFast", "cls_token": "<s>", "sep_token": "</s>"},
        transformers.RobertaTokenizer,
    ),
}


@pytest.mark.parametrize("name", OLDER)
def test_older_vocabulary_files_mean_the_same(name: str, tmp_path: Path) -> None:
    kind, settings, theirs = OLDER[name]
    tokenizer = Tokenizer.load(older(tmp_path, kind, settings))
    theirs = theirs.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)
    known = {role: getattr(theirs, f"{role}_token_id") for role in tokenizer.specials}
    assert tokenizer.specials == known
    assert len(known) >= 2


def test_added_tokens_of_the_older_files_have_their_ids(tmp_path: Path) -> None:
    folder = older(tmp_path, "wordpiece", {"added_tokens_decoder": {"12": {"content": "<pad>", "special": True}}})
    (folder / "added_tokens.json").write_text(json.dumps({"<ent>": 13}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": {"content": "<pad>"}, "mask_token": None}))
    tokenizer = Tokenizer.load(folder)
    assert (tokenizer.special("pad"), tokenizer.special("mask"), tokenizer.vocab_size) == (12, 4, 14)
    assert tokenizer.decode([5, 13], skip_special=True) == "to"
    (folder / "added_tokens.json").write_text(json.dumps({"<ent>": 20}))
    with pytest.raises(UserError, match=r"the added token '<ent>' in .* cannot have the id 20"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, "holds no tokenizer: neither tokenizer.json, nor vocab.json with merges.txt, nor vocab.txt"),
        ({"vocab.json": "{}"}, "holds no tokenizer"),
        (
            {"spiece.model": "x"},
            r"holds a SentencePiece model \(spiece.model\) and no tokenizer.json; load it with transformers",
        ),
        (
            {"vocab.txt": "a", "tokenizer_config.json": '{"tokenizer_class": "EsmTokenizer"}'},
            "files of a EsmTokenizer are not supported",
        ),
        ({"vocab.txt": "a", "tokenizer_config.json": "{"}, "tokenizer_config.json is not JSON"),
        ({"vocab.txt": "a", "tokenizer_config.json": "[]"}, "tokenizer_config.json does not hold a mapping"),
        ({"vocab.json": '{"a</w>": 0}', "merges.txt": ""}, "is not byte-level byte-pair encoding"),
        ({"vocab.json": "not", "merges.txt": ""}, "the vocabulary in .* cannot be used"),
        ({"vocab.txt": "a", "added_tokens.json": '{"<ent>": "one"}'}, "the vocabulary in .* cannot be used"),
        ({"tokenizer.json": "not"}, "is not a tokenizer.json"),
    ],
    ids=lambda value: "+".join(value) or "nothing" if isinstance(value, dict) else None,
)
def test_a_folder_without_a_tokenizer_that_can_be_read_says_so(
    files: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=sentence) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_of_bytes_behind_special_tokens_needs_no_vocabulary(tmp_path: Path) -> None:
    """Perceiver's: byte + 6, read by looking up each byte, and framed as that library frames one text and two."""
    theirs = transformers.PerceiverTokenizer(mask_token="<hidden>")
    theirs.save_pretrained(tmp_path)
    assert not any((tmp_path / name).exists() for name in ("tokenizer.json", "vocab.json", "vocab.txt"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("é[MASK]") == [6 + byte for byte in "é[MASK]".encode()]
    assert tokenizer.special("mask") == 3
    assert type(tokenizer._coder) is ByteCoder
    assert tokenizer.encode_framed("to be").ids == theirs.encode("to be")
    assert tokenizer.pair_frame.around(tokenizer.encode("to"), tokenizer.encode("be")).ids == theirs.encode("to", "be")
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").unlink()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert fast.encode("to be") == theirs.encode("to be")
