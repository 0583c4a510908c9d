"""Tokenizers in GGUF files: the same ids when read without the stored ``tokenizer.json``, and in llama.cpp."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

from qkv.spec.tokenizers import BPE, Bytes, Characters, Code, Words
from qkv.system.errors import UserError
from qkv.tokenizers.gguf import words as gguf_words
from qkv.tokenizers.gguf.write import metadata_of_tokenizer
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

gguf = pytest.importorskip("gguf")

TEXTS = (
    "the quick brown fox jumps over the lazy dog; it's 12345 o'clock, we'll see!",
    "  two  spaces\n\nand\tlines \r\n at the end   ",
    "café naïve “quotes” €5 — 日本語 मानक ½ 😀",
    "HTTPServer2024 isn't IT'S x+=1; #$%",
    "",
)
LATER = "the lazy café isn't quick: 98765 foxes\n\n   jump…  it's 日本"


def trained(words: gguf_words.WordSplit, special: Sequence[str] = ("<s>", "</s>")) -> Tokenizer:
    """Byte-level BPE with a way to split of ``WORDS``, made with the library tokenizers."""
    core = tokenizers.Tokenizer(models.BPE(ignore_merges=words.whole))
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if words.digits else []
    if words.regex:
        steps.append(pre_tokenizers.Split(tokenizers.Regex(words.regex), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not words.regex))
    core.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False))
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    core.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], special_tokens=[("<s>", core.token_to_id("<s>"))]
    )
    return Tokenizer(core)


def written(tokenizer: Tokenizer, file: Path, drop: Sequence[str] = (), **changed: Any) -> Path:
    """GGUF file with nothing but a tokenizer. ``drop``: keys left out."""
    values, _ = metadata_of_tokenizer(tokenizer, tokenizer.vocab_size)
    writer = gguf.GGUFWriter(file, "gpt2")
    for key, value in {**values, **changed}.items():
        if key in drop:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_ti_data_to_file, writer.close):
        step()
    return file


@pytest.mark.parametrize("words", gguf_words.WORDS, ids=lambda words: words.names[0])
def test_byte_pairs_are_read_from_tokens_and_merges(words: gguf_words.WordSplit, tmp_path: Path) -> None:
    ours = trained(words)
    values, said = metadata_of_tokenizer(ours, ours.vocab_size)
    assert (values["tokenizer.ggml.pre"], said) == (words.names[0], "")
    found = Tokenizer.load(written(ours, tmp_path / "a.gguf", drop=[gguf_words.WHOLE]))
    for text in (*TEXTS, LATER):
        assert found.encode(text) == ours.encode(text)
        assert found.decode(found.encode(text)) == text
    assert found.specials == ours.specials
    assert found.frame == ours.frame
    assert found.encode("<s>") == ours.encode("<s>") != [ours.specials["bos"]]


def test_the_stored_tokenizer_comes_first(tmp_path: Path) -> None:
    ours = train(Words(vocab_size=40), TEXTS)
    values, said = metadata_of_tokenizer(ours, 50)
    assert values["tokenizer.ggml.model"] == "none"
    assert "ids only" in said
    assert Tokenizer.load(written(ours, tmp_path / "a.gguf")).to_json() == ours.to_json()
    assert metadata_of_tokenizer(train(Code(vocab_size=300), TEXTS), 300)[0]["tokenizer.ggml.model"] == "none"


def test_characters_and_bytes_are_byte_pairs_to_llama_cpp(tmp_path: Path) -> None:
    for kind in (Characters(), Bytes()):
        ours = train(kind, TEXTS)
        values, said = metadata_of_tokenizer(ours, ours.vocab_size)
        assert (values["tokenizer.ggml.model"], values["tokenizer.ggml.pre"], said) == ("gpt2", "gpt-2", "")
    found = Tokenizer.load(written(train(Bytes(), []), tmp_path / "bytes.gguf", drop=[gguf_words.WHOLE]))
    assert [found.encode(text) for text in TEXTS] == [list(text.encode()) for text in TEXTS]
    pairs = metadata_of_tokenizer(train(Characters(), ["é€x"]), 4)[0]["tokenizer.ggml.merges"]
    assert pairs == ["Ã ©", "â Ĥ", "âĤ ¬"]  # the bytes of é and €, in GPT-2's alphabet


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]


def pieces() -> tuple[list[str], list[float]]:
    """Tokens and scores as of SentencePiece: merged ones by rank, then single characters."""
    merged = [
        "▁t",
        "he",
        "▁the",
        "in",
        "qu",
        "▁qu",
        "ick",
        "ck",
        "▁quick",
        "er",
        "▁l",
        "az",
        "zy",
        "azy",
        "▁lazy",
        "ic",
    ]
    single = sorted(set("▁thequickbrownfoxjmpsvlazydg;isé") | set("ick"))
    tokens = [*PIECES, *merged, *single]
    return tokens, [0.0] * len(PIECES) + [-float(rank) for rank in range(len(merged) + len(single))]


def by_scores(text: str, tokens: list[str], scores: list[float]) -> list[int]:
    """SentencePiece's BPE: merge the neighbours whose concatenation has the best score, leftmost first."""
    index = {token: i for i, token in enumerate(tokens)}
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        joined = [a + b for a, b in itertools.pairwise(parts)]
        pairs = [(-scores[index[token]], i) for i, token in enumerate(joined) if token in index]
        if not pairs:
            break
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [
        found
        for part in parts
        for found in ([index[part]] if part in index else [index[f"<0x{byte:02X}>"] for byte in part.encode()])
    ]


def sentence_file(file: Path) -> Path:
    tokens, scores = pieces()
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    left_out = (gguf_words.WHOLE, gguf_words.PRE, gguf_words.MERGES, gguf_words.ADD_BOS, gguf_words.ADD_EOS)
    return written(train(Bytes(), []), file, drop=left_out, **values)


def test_sentence_pieces_are_merged_by_their_scores(tmp_path: Path) -> None:
    found, (tokens, scores) = Tokenizer.load(sentence_file(tmp_path / "a.gguf")), pieces()
    for text in ("the quick brown fox", "lazy  lazy", "thick ick", "😀 é the", "in the inner"):
        assert found.encode(text) == by_scores(text, tokens, scores)
        assert found.decode(found.encode(text)) == text
    assert found.specials == {"bos": 1, "eos": 2, "unk": 0}
    assert found.frame.before == (1,)
    values, said = metadata_of_tokenizer(found, found.vocab_size)
    assert (values["tokenizer.ggml.model"], said) == ("llama", "")
    again = Tokenizer.load(written(found, tmp_path / "b.gguf", drop=[gguf_words.WHOLE]))
    assert [again.encode(text) for text in TEXTS] == [found.encode(text) for text in TEXTS]
    tree = json.loads(found.to_json())
    tree["model"]["merges"] = tree["model"]["merges"][:-1]  # a token that can no longer be merged
    assert metadata_of_tokenizer(Tokenizer.from_json(json.dumps(tree)), 400)[0]["tokenizer.ggml.model"] == "none"


def test_bad_tokenizers_are_refused_with_one_sentence(tmp_path: Path) -> None:
    ours = train(BPE(vocab_size=280), TEXTS)
    whole = [gguf_words.WHOLE]
    for number, (drop, changed, said) in enumerate(
        (
            ([*whole, gguf_words.TOKENS], {}, "lacks the key 'tokenizer.ggml.tokens'"),
            (whole, {gguf_words.TYPES: [1, 2]}, "tokens"),
            (whole, {gguf_words.PRE: "mystery"}, "has a tokenizer of the kind gpt2 mystery, which qkv does not read"),
            (whole, {gguf_words.MODEL: "t5"}, "has a tokenizer of the kind t5"),
            ([], {gguf_words.WHOLE: "{}"}, "is not a tokenizer.json"),
        )
    ):
        file = written(ours, tmp_path / f"{number}.gguf", drop=drop, **changed)
        with pytest.raises(UserError) as raised:
            Tokenizer.load(file)
        assert said in str(raised.value)


@pytest.mark.parametrize("kind", [*(words.names[0] for words in gguf_words.WORDS), "characters", "bytes", "sentence"])
def test_llama_cpp_gives_the_same_ids(kind: str, tmp_path: Path) -> None:
    """With llama-cpp-python only."""
    llama_cpp: Any = pytest.importorskip("llama_cpp")
    file = tmp_path / "a.gguf"
    if kind == "sentence":
        ours = Tokenizer.load(sentence_file(file))
    else:
        made = {"characters": Characters(), "bytes": Bytes()}
        words = next((words for words in gguf_words.WORDS if words.names[0] == kind), None)
        ours = trained(words) if words else train(made[kind], [*TEXTS, LATER])
        written(ours, file)
    options = llama_cpp.llama_model_default_params()
    options.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(file).encode(), options)
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    for text in (*TEXTS, LATER):
        plain = text.encode()
        room = (llama_cpp.llama_token * (len(plain) + 9))()
        count = llama_cpp.llama_tokenize(vocabulary, plain, len(plain), room, len(room), False, False)
        assert list(room[:count]) == ours.encode(text), text
    llama_cpp.llama_model_free(model)
