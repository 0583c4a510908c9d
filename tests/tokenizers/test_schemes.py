"""What each scheme does to a text, beside the library's own model of the same file and written-out examples."""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.tokenizers.texts import AWKWARD, BY_HAND, TEXTS
from transformers import BertTokenizer, PreTrainedTokenizerFast

from qkv.spec import tokenizers as spec
from qkv.spec.errors import SpecError
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import RESIDUES, train

PROSE = [topics[name] for name in sorted(topics)[:12]]
PYTHON = '''\
def area(radius_2: float) -> float:
    """Of a circle."""
    if radius_2 <= 0:
        raise ValueError(f"{radius_2!r} is not > 0")
\treturn 3.14159 * radius_2 ** 2  # about


class Naïve(dict[str, "Ünï"]):
        pass
'''
C_CODE = "for (int i=0; i<1024; ++i) {\r\n\t\tx[i] += 0x1F;\r\n}\r\n"
CODE = train(spec.Code(vocab_size=600), [PYTHON * 20, C_CODE * 20])
WORDPIECES = {
    lowercase: train(spec.WordPiece(vocab_size=700, lowercase=lowercase), PROSE) for lowercase in (True, False)
}
UNIGRAM = train(spec.Unigram(vocab_size=700), PROSE)
WORD_LIST = train(spec.WordList(), ["A cat, a DOG: it's Über-cool.", "a cat a dog über , : ' it s . - cool rare"])
AMINO = train(spec.AminoAcids(), ())


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([index]) for index in tokenizer.encode(text)]


@pytest.mark.parametrize(
    "text", [PYTHON, C_CODE, PROSE[0], AWKWARD, *BY_HAND, "a 1 2  3 ١٢", " x", "x ", "  x\n \n\ty"]
)
def test_code_gives_back_every_text_and_keeps_digits_apart(text: str) -> None:
    assert CODE.decode(CODE.encode(text)) == text
    spans = [text[slice(*span)] for span in CODE.encode_offsets(text)[1]]
    assert all(span in (text[i] for i in range(len(text))) for span in spans if any(c.isdecimal() for c in span))


def test_code_learns_indentations_names_and_operators() -> None:
    learned = pieces(CODE, PYTHON)
    for piece in ("\n        ", "\n    ", "def", " radius_", "2", " **", "\n\n\n"):
        assert piece in learned, piece
    assert pieces(CODE, "x[i] += 0x1F")[-6:] == [" +=", " ", "0", "x", "1", "F"]
    assert CODE.vocab_size <= 600


def test_an_indentation_does_not_change_what_follows_it() -> None:
    for indentation in ("", "\n", "\n    ", "\t\t", "\r\n", "  "):
        assert pieces(CODE, f"{indentation}return radius_2")[-3:] == pieces(CODE, "return radius_2")[-3:]


@pytest.mark.parametrize("lowercase", WORDPIECES)
@pytest.mark.parametrize(
    "text", [*BY_HAND, AWKWARD, PROSE[20 % len(PROSE)], "Don't. Stop? No! Ünknown 漢字, [UNK] [CLS]s ##x"]
)
def test_wordpiece_gives_the_ids_of_the_library_and_of_transformers(lowercase: bool, text: str, tmp_path: Path) -> None:
    tokenizer = WORDPIECES[lowercase]
    tokenizer.save(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids
    bert = BertTokenizer(vocab=tokenizer.core.get_vocab(), do_lower_case=lowercase, unk_token="[UNK]")
    plain = text.replace("[UNK]", "UNK").replace("[CLS]", "CLS")  # which transformers reads as special tokens
    ids = bert.encode(plain, add_special_tokens=False)
    assert tokenizer.encode(plain) == ids
    assert tokenizer.decode(ids) == bert.decode(ids, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("text", [*BY_HAND, AWKWARD, PROSE[3]])
def test_unigram_gives_the_ids_of_the_library_and_of_transformers(text: str, tmp_path: Path) -> None:
    UNIGRAM.save(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    ids = UNIGRAM.encode(text)
    assert ids == library.encode(text).ids == theirs.encode(text)
    assert UNIGRAM.decode(ids) == library.decode(ids) == text


def best_score(tokenizer: Tokenizer, word: str) -> float:
    """The highest sum of log probabilities over all ways to cut ``word``, tried one by one."""
    scores = dict(json.loads(tokenizer.core.to_str())["model"]["vocab"])
    best = [0.0]
    for end in range(1, len(word) + 1):
        best.append(max(best[begin] + scores[word[begin:end]] for begin in range(end) if word[begin:end] in scores))
    return best[-1]


@pytest.mark.parametrize("word", ["statement", "assignment", "xyzzy", "thethethe", "aaaaaaa"])
def test_unigram_takes_the_most_probable_pieces(word: str) -> None:
    vocab = json.loads(UNIGRAM.core.to_str())["model"]["vocab"]
    assert sum(vocab[index][1] for index in UNIGRAM.encode(word)) == pytest.approx(best_score(UNIGRAM, word))


def test_unigram_knows_frequent_words_and_all_bytes() -> None:
    assert pieces(UNIGRAM, " the statement")[0] == " the"
    assert len(UNIGRAM.encode("a statement is the object")) < 10
    assert UNIGRAM.vocab_size <= 700
    assert {UNIGRAM.decode([index]) for index in range(UNIGRAM.vocab_size)} >= set(map(chr, range(128)))


def test_wordpieces_are_cut_from_the_left_by_the_longest_piece() -> None:
    tokenizer = WORDPIECES[True]
    vocab = tokenizer.core.get_vocab()
    word, rest, expected = "statementsareable", "statementsareable", []
    while rest:
        mark = "##" if len(rest) < len(word) else ""
        longest = next(rest[:end] for end in range(len(rest), 0, -1) if mark + rest[:end] in vocab)
        expected.append(vocab[mark + longest])
        rest = rest[len(longest) :]
    assert tokenizer.encode(word) == expected
    assert 1 < len(expected) < len(word)


def test_wordpiece_lowers_strips_accents_and_counts_what_it_does_not_know() -> None:
    tokenizer = WORDPIECES[True]
    assert tokenizer.decode(tokenizer.encode("  The\tSTÂTEMENT ,it 's ok .")) == "the statement, it ' s ok."
    cased = WORDPIECES[False]
    assert cased.decode(cased.encode("The statement")) == "The statement"
    assert tokenizer.unknown("the 漢 statement ж") == ["漢", "ж"]
    assert tokenizer.special("unk") == tokenizer.unknown_id == 0
    assert tokenizer.decode(tokenizer.encode("x" * 101)) == "[UNK]"


def test_letters_beyond_a_quarter_of_the_vocabulary_are_unknown() -> None:
    letters = "".join(map(chr, range(0x430, 0x450)))
    tokenizer = train(spec.WordPiece(vocab_size=41), [f"{letters} aaa bbb aaa bbb ccc"])
    assert tokenizer.vocab_size <= 41
    assert tokenizer.unknown("a b c а б ж я") == ["ж", "я"], (
        "10 letters: three that are frequent, then those that come first"
    )


def test_a_word_list_is_words_without_spaces() -> None:
    assert pieces(WORD_LIST, "A  cat,\na DOG") == ["a", "cat", ",", "a", "dog"]
    assert WORD_LIST.decode(WORD_LIST.encode(" It's  a\tcat:über-cool!")) == "it ' s a cat : über - cool <unk>"
    assert WORD_LIST.unknown("a Rare cat") == ["Rare"], "seen once only"
    cased = train(spec.WordList(lowercase=False, min_frequency=1), ["A a B"])
    assert cased.encode("A a B b") == [0, 2, 1, 3]


def test_words_can_be_lowered_and_have_a_least_frequency() -> None:
    tokenizer = train(spec.Words(lowercase=True, min_frequency=2), ["The the cat  the Cat rare  x"])
    assert tokenizer.decode(tokenizer.encode("THE cat  rare")) == "the cat  <unk>"
    assert tokenizer.vocab_size == 5
    assert train(spec.Words(vocab_size=3, lowercase=True), ["b B b a a c"]).vocab_size == 3


@pytest.mark.parametrize("name", ["wordpiece", "cased_wordpiece", "word_list"])
@given(data=st.data())
def test_decoding_gives_a_normal_form_that_stays(name: str, data: st.DataObject) -> None:
    tokenizer = {"wordpiece": WORDPIECES[True], "cased_wordpiece": WORDPIECES[False], "word_list": WORD_LIST}[name]
    known = "".join(letter for letter in map(chr, range(0x250)) if not tokenizer.unknown(letter)) + "\u0301\u3000"
    text = data.draw(st.text(alphabet=known, max_size=60))
    normal = tokenizer.decode(tokenizer.encode(text))
    if tokenizer.unknown_id not in tokenizer.encode(text):
        assert tokenizer.encode(normal) == tokenizer.encode(text)
        assert tokenizer.decode(tokenizer.encode(normal)) == normal
    assert "  " not in normal
    assert normal == normal.strip()


@given(text=TEXTS)
def test_code_and_unigram_give_back_every_text(text: str) -> None:
    assert CODE.decode(CODE.encode(text)) == text
    assert UNIGRAM.decode(UNIGRAM.encode(text)) == text


def test_amino_acids_are_one_id_a_residue_whatever_the_case() -> None:
    assert AMINO.vocab_size == 27
    assert AMINO.encode("ACDEFGHIKLMNPQRSTVWYBZXUOJ") == list(range(26))
    assert AMINO.encode("mkvLaX") == AMINO.encode("MKVLAX")
    assert AMINO.decode(AMINO.encode("mkv*l")) == "MKV<unk>L"
    assert AMINO.unknown("MK-v*ß\n") == ["-", "*", "ß", "\n"]
    assert AMINO.special("unk") == 26
    assert sorted(RESIDUES) == [chr(code) for code in range(65, 91)], "every letter stands for something"
    assert AMINO.encode_offsets("éKk")[1] == [(0, 1), (1, 2), (2, 3)]


@given(text=st.text(alphabet=RESIDUES + RESIDUES.lower(), max_size=80))
def test_amino_acids_give_back_a_sequence_in_capitals(text: str) -> None:
    assert AMINO.decode(AMINO.encode(text)) == text.upper()


@pytest.mark.parametrize("tokenizer", [WORDPIECES[True], WORD_LIST], ids=["wordpiece", "word_list"])
@pytest.mark.parametrize("text", ["The  CÂT, naïve\u0301 — dog's.", "\u0301 a\x00b İx ǅ", "漢字 cat"])
def test_spans_are_of_the_text_as_it_was_written(tokenizer: Tokenizer, text: str) -> None:
    ids, spans = tokenizer.encode_offsets(text)
    assert ids == tokenizer.encode(text)
    reached = 0
    for begin, end in spans:
        assert begin < end <= len(text)
        assert begin >= reached - 1, "accents that a cleaning drops may belong to either side"
        assert not text[begin].isspace()
        reached = end
    words = [text[slice(*span)].lower() for span in spans]
    if text.startswith("The"):
        assert words[:1] == ["the"]
        assert "".join(words).startswith("thec")


@pytest.mark.parametrize(
    "text", ["wordpiece(vocab_size=2)", "unigram(vocab_size=257)", "words(min_frequency=0)", "code(vocab_size=3)"]
)
def test_sizes_that_cannot_be_are_refused(text: str) -> None:
    kind, _, field = text.rstrip(")").partition("(")
    name, _, value = field.partition("=")
    with pytest.raises(SpecError, match=name):
        spec.Tokenizer.kinds()[kind].parse({name: int(value)})
