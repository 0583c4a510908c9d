"""Every scheme: lossless where it claims to be, equal to the library's own path, and the same after a save."""

from __future__ import annotations

import json
import pickle
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tokenizers.texts import AWKWARD, BY_HAND, SPACED, TEXTS
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from qkv.spec import tokenizers as spec
from qkv.system.errors import UserError
from qkv.tokenizers.coders import ByteCoder, CharacterCoder, PlainCoder, UnitCoder
from qkv.tokenizers.tokenizer import Tokenizer, well_formed
from qkv.tokenizers.train import train

CORPUS = "To be, or not to be: that's the question.\n\n  Whether 'tis nobler… 漢字 10 times\tor 200?\n" * 3 + AWKWARD
SCHEMES = {
    "characters": spec.Characters(),
    "bytes": spec.Bytes(),
    "words": spec.Words(vocab_size=64),
    "lower_words": spec.Words(vocab_size=64, lowercase=True, min_frequency=3),
    "word_list": spec.WordList(vocab_size=64),
    "bpe": spec.BPE(vocab_size=300),
    "code": spec.Code(vocab_size=300),
    "wordpiece": spec.WordPiece(vocab_size=300),
    "cased_wordpiece": spec.WordPiece(vocab_size=300, lowercase=False),
    "unigram": spec.Unigram(vocab_size=300),
    "amino_acids": spec.AminoAcids(),
}
MADE = {name: train(scheme, [CORPUS]) for name, scheme in SCHEMES.items()}
WITH_SPACES = [
    spec.Words(),
    spec.WordList(),
    spec.BPE(vocab_size=4000),
    spec.Code(vocab_size=4000),
    spec.WordPiece(vocab_size=4000),
    spec.Unigram(vocab_size=2000),
]
LOSSLESS = ("bytes", "bpe", "code", "unigram")


@pytest.mark.parametrize("name", LOSSLESS)
@given(text=TEXTS)
def test_lossless_schemes_give_back_every_text(name: str, text: str) -> None:
    assert MADE[name].decode(MADE[name].encode(text)) == text
    assert MADE[name].unknown(text) == []


@given(text=st.text(alphabet=CORPUS, max_size=80))
def test_characters_give_back_their_alphabet(text: str) -> None:
    tokenizer = MADE["characters"]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text)


@given(
    words=st.lists(st.sampled_from(["To", "be", ",", " ", "\n\n", "…", "that", "'", "漢字", "200", "\t"]), max_size=30)
)
def test_words_give_back_known_words(words: list[str]) -> None:
    tokenizer = train(spec.Words(), [CORPUS])
    text = "".join(words)
    pieces = [piece for piece, _ in tokenizer.core.pre_tokenizer.pre_tokenize_str(text)]
    known = all(tokenizer.core.token_to_id(piece) is not None for piece in pieces)
    assert (tokenizer.decode(tokenizer.encode(text)) == text) == known


@pytest.mark.parametrize("name", SCHEMES)
@settings(max_examples=150)
@given(text=TEXTS)
def test_the_fast_path_gives_the_ids_of_the_library(name: str, text: str) -> None:
    tokenizer = MADE[name]
    expected = tokenizer.core.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode_array(text).dtype == tokenizer.dtype
    assert tokenizer.decode(expected) == tokenizer.core.decode(expected, skip_special_tokens=False)


@pytest.mark.parametrize("text", BY_HAND)
@pytest.mark.parametrize("name", SCHEMES)
def test_texts_by_hand_have_the_ids_of_the_library(name: str, text: str) -> None:
    tokenizer = MADE[name]
    assert tokenizer.encode(text) == tokenizer.core.encode(text, add_special_tokens=False).ids
    if name in LOSSLESS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("scheme", WITH_SPACES, ids=lambda s: s.kind)
def test_every_space_of_unicode_is_cut_as_the_library_does(scheme: spec.Tokenizer) -> None:
    spaces = [chr(code) for code in range(0x3100) if chr(code).isspace() or not chr(code).isprintable()]
    texts = [f"a{space}b {space}!{space}{space}c\n{space}" for space in spaces]
    tokenizer = train(scheme, texts * 3)  # what stands together often has a token, so that a wrong cut shows
    assert len(spaces) > 60
    for text in texts:
        assert tokenizer.encode(text) == tokenizer.core.encode(text).ids, ascii(text)


@pytest.mark.parametrize("name", SCHEMES)
@given(texts=st.lists(SPACED, max_size=6))
def test_many_texts_are_encoded_one_by_one(name: str, texts: list[str]) -> None:
    tokenizer = MADE[name]
    ids, lengths = tokenizer.encode_many(texts)
    alone = [tokenizer.encode(text) for text in texts]
    assert ids.tolist() == [index for one in alone for index in one]
    assert lengths.tolist() == [len(one) for one in alone]


@pytest.mark.parametrize("name", SCHEMES)
@settings(max_examples=150)
@given(text=st.lists(SPACED, min_size=2, max_size=8).map(lambda parts: "b" + " a\n".join(parts)))
def test_parts_cut_at_a_border_have_the_ids_of_the_whole(name: str, text: str) -> None:
    tokenizer = MADE[name]
    border = tokenizer.border(text)
    assert 0 < border <= len(text)
    assert tokenizer.encode(text[:border]) + tokenizer.encode(text[border:]) == tokenizer.encode(text)


@pytest.mark.parametrize(("name", "text"), [("words", "aaa"), ("bpe", "aaa "), ("bpe", " \n \n"), ("words", "")])
def test_a_text_without_a_border_says_so(name: str, text: str) -> None:
    assert MADE[name].border(text) == 0


def test_a_coder_that_forgets_gives_the_same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnitCoder, "most_remembered", 5)
    tokenizer = train(spec.BPE(vocab_size=300), [CORPUS])
    for text in (CORPUS[:50], CORPUS[20:90], CORPUS[:50], CORPUS, "one"):
        assert tokenizer.encode(text) == tokenizer.core.encode(text).ids
    assert len(tokenizer._coder._index) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "coder"),
    [
        (name, {"characters": CharacterCoder, "amino_acids": CharacterCoder, "bytes": ByteCoder}.get(name, UnitCoder))
        for name in SCHEMES
    ],
)
def test_a_saved_tokenizer_is_the_same_and_stays_fast(name: str, coder: type, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    MADE[name].save(path)
    for again in (
        Tokenizer.load(path),
        Tokenizer.load(tmp_path),
        Tokenizer.from_json(path.read_text(encoding="utf-8")),
    ):
        assert isinstance(again._coder, coder)
        assert again.encode(CORPUS) == MADE[name].encode(CORPUS)
        assert (again.vocab_size, again.unknown_id, again.dtype) == (
            MADE[name].vocab_size,
            MADE[name].unknown_id,
            MADE[name].dtype,
        )


@pytest.mark.parametrize("text", BY_HAND)
@pytest.mark.parametrize("name", SCHEMES)
def test_the_file_means_the_same_in_transformers(name: str, text: str, tmp_path: Path) -> None:
    MADE[name].save(tmp_path)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    ids = theirs.encode(text, add_special_tokens=False)
    assert ids == MADE[name].encode(text)
    assert theirs.decode(ids, clean_up_tokenization_spaces=False) == MADE[name].decode(ids)


def test_ids_of_characters_are_in_the_order_of_code_points_with_the_unknown_last() -> None:
    tokenizer = train(spec.Characters(), ["cab", "ba é"])
    assert tokenizer.encode(" abcé?") == [0, 1, 2, 3, 4, 5]
    assert (tokenizer.vocab_size, tokenizer.unknown_id) == (6, 5)
    assert tokenizer.decode([5, 1]) == "<unk>a"
    assert tokenizer.encode("a漢\x00\u014cb") == [1, 5, 5, 5, 2]


def test_the_id_of_a_byte_is_its_value() -> None:
    assert MADE["bytes"].encode("aé\n") == [97, 0xC3, 0xA9, 10]
    assert MADE["bytes"].vocab_size == 256
    assert MADE["bytes"].unknown_id is None


def test_ids_of_words_are_by_frequency() -> None:
    tokenizer = train(spec.Words(vocab_size=4), ["b b b a a c d"])
    assert tokenizer.encode("b a c d") == [1, 0, 2, 0, 3, 0, 3]
    assert (tokenizer.vocab_size, tokenizer.unknown_id) == (4, 3)


def test_unknown_pieces_are_named_once_in_order() -> None:
    assert train(spec.Characters(), ["abc"]).unknown("a?b!?") == ["?", "!"]
    assert train(spec.Words(), ["one two"]).unknown("two three, one three") == ["three", ","]
    assert MADE["characters"].unknown("To be") == []


def test_unknown_pieces_of_a_unigram_vocabulary() -> None:
    core = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0)], unk_id=0))
    tokenizer = Tokenizer(core)
    assert tokenizer.unknown_id == 0
    assert tokenizer.unknown("axyb") == ["xy"]


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udc80\udcff", "x\ud800 \udc00"])
def test_lone_surrogates_are_read_as_the_replacement_character(name: str, text: str) -> None:
    tokenizer = MADE[name]
    assert tokenizer.encode(text) == tokenizer.encode(well_formed(text))
    assert tokenizer.encode_many([text])[0].tolist() == tokenizer.encode(text)
    assert all(piece.encode() for piece in tokenizer.unknown(text))


def test_a_pair_of_surrogates_is_the_character_that_it_means() -> None:
    assert well_formed("\ud83d\udc4d") == "👍"
    assert well_formed("a\ud83d") == "a\ufffd"
    assert well_formed("plain") == "plain"


@pytest.mark.parametrize("name", SCHEMES)
def test_a_negative_id_is_refused_and_one_without_a_token_is_written_as_nothing(name: str) -> None:
    tokenizer = MADE[name]
    with pytest.raises(UserError, match=f"the id -1 is outside the tokenizer's vocabulary of {tokenizer.vocab_size}"):
        tokenizer.decode([0, -1])
    assert tokenizer.decode([0, 999999, 1, tokenizer.vocab_size]) == tokenizer.decode([0, 1])


def test_arrays_can_be_decoded_and_written_to() -> None:
    for tokenizer in MADE.values():
        ids = tokenizer.encode_array("To be")
        assert tokenizer.decode(ids) == tokenizer.decode(ids.astype(np.int64)) == tokenizer.decode(ids.tolist())
        ids[0] = 0
        assert tokenizer.encode("To be") != ids.tolist() or tokenizer.encode("T")[0] == 0


def test_bytes_that_are_not_utf8_become_the_replacement_character() -> None:
    assert MADE["bytes"].decode([0x61, 0xFF, 0xC3, 0x28]) == "a\ufffd\ufffd("


def foreign() -> tokenizers.Tokenizer:
    """Vocabulary as other tools make it: lower case, added tokens, special tokens round a text, cut after eight ids."""
    core = tokenizers.Tokenizer(
        models.WordPiece({"[UNK]": 0, "to": 1, "be": 2, "##e": 3, "[CLS]": 4}, unk_token="[UNK]")
    )
    core.normalizer, core.pre_tokenizer, core.decoder = (
        normalizers.Lowercase(),
        pre_tokenizers.Whitespace(),
        decoders.WordPiece(),
    )
    core.add_special_tokens(["[CLS]"])
    core.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 4)])
    core.enable_truncation(2)
    core.enable_padding(length=9)
    return core


def test_a_foreign_vocabulary_is_read_without_cutting_padding_or_special_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(foreign().to_str(), encoding="utf-8")
    tokenizer = train(spec.TokenizerFile(path=str(tmp_path)), ())
    assert isinstance(tokenizer._coder, PlainCoder)
    assert tokenizer.encode("To BE to bee xx") == [1, 2, 1, 2, 3, 0]
    assert 4 not in tokenizer.encode("[CLS]")
    assert tokenizer.decode([1, 2, 3]) == "to bee"
    assert tokenizer.unknown("to XX be") == ["XX"]
    assert tokenizer.border("to be\nto") == 6


def test_added_tokens_and_normalizers_take_the_librarys_path() -> None:
    core = tokenizers.Tokenizer.from_str(MADE["bpe"].core.to_str())
    core.add_tokens(["<|end|>"])
    tokenizer = Tokenizer(core)
    assert isinstance(tokenizer._coder, PlainCoder)
    assert tokenizer.encode("a  <|end|>") == core.encode("a  <|end|>").ids
    assert tokenizer.encode("<|end|>") == [tokenizer.vocab_size - 1]
    assert tokenizer.decode(tokenizer.encode("é<|end|>é")) == "é<|end|>é"
    core = tokenizers.Tokenizer.from_str(MADE["bpe"].core.to_str())
    core.normalizer = normalizers.Prepend("<")
    assert Tokenizer(core).encode("to be") == MADE["bpe"].encode("<to be")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff\xfe", "it is not UTF-8 text"),
        (b"not json", "is not a tokenizer.json"),
        (b"{}", "is not a tokenizer.json"),
        (b"", "is not a tokenizer.json"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_in_one_sentence(
    content: bytes | None, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "some.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=sentence) as caught:
        train(spec.TokenizerFile(path=str(path)), ())
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_saving_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    MADE["bytes"].save(path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match=r"cannot be written to .*: No space left on device"):
        MADE["bpe"].save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]


def test_a_saved_tokenizer_can_be_read_by_others(tmp_path: Path) -> None:
    MADE["bytes"].save(tmp_path / "tokenizer.json")
    assert stat.S_IMODE((tmp_path / "tokenizer.json").stat().st_mode) & stat.S_IRGRP
    assert json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["model"]["type"] == "BPE"


def test_a_vocabulary_without_an_unknown_token_says_what_it_cannot_encode(tmp_path: Path) -> None:
    core = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    tokenizer = Tokenizer(core)
    assert (tokenizer.encode("ab"), tokenizer.unknown_id) == ([0, 1], None)
    with pytest.raises(UserError, match="the tokenizer cannot encode this text: WordLevel error: Missing"):
        tokenizer.encode("abc")


@pytest.mark.parametrize("name", SCHEMES)
def test_a_tokenizer_goes_to_another_process(name: str) -> None:
    again = pickle.loads(pickle.dumps(MADE[name]))
    assert again.encode(CORPUS) == MADE[name].encode(CORPUS)
    assert type(again._coder) is type(MADE[name]._coder)


def test_threads_may_encode_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnitCoder, "most_remembered", 40)
    tokenizer = train(spec.BPE(vocab_size=300), [CORPUS])
    texts = [f"{CORPUS[i:]} {i} new{i}" for i in range(64)]
    expected = [tokenizer.core.encode(text).ids for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode, texts * 5)) == expected * 5
