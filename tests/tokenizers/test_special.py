"""Special tokens: at the end of the vocabulary, never read from a text, and the same after a save."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.tokenizers.texts import AWKWARD, BY_HAND, SPACED, TEXTS
from tokenizers import models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from qkv.spec import tokenizers as spec
from qkv.system.errors import UserError
from qkv.tokenizers.special import CONTENTS
from qkv.tokenizers.stream import StreamDecoder
from qkv.tokenizers.tokenizer import Tokenizer, well_formed
from qkv.tokenizers.train import train

CORPUS = "To be, or not to be: <eos> that's the question.\n\n 漢字 10 times\tor <pad>200?\n" * 3 + AWKWARD
SCHEMES = {
    "characters": spec.Characters(),
    "bytes": spec.Bytes(),
    "words": spec.Words(vocab_size=64),
    "bpe": spec.BPE(vocab_size=300),
}
ROLES = ("pad", "bos", "eos", "cls", "sep", "mask")
BARE = {name: train(scheme, [CORPUS]) for name, scheme in SCHEMES.items()}
MADE = {name: tokenizer.with_specials(ROLES, ["<extra_id_0>", "<extra_id_1>"]) for name, tokenizer in BARE.items()}
LITERALS = [*(CONTENTS[role][0] for role in ROLES), "<extra_id_0>"]


@pytest.mark.parametrize("name", SCHEMES)
def test_they_are_the_last_ids_in_the_order_asked_for(name: str) -> None:
    bare, tokenizer = BARE[name], MADE[name]
    first = bare.vocab_size
    assert tokenizer.specials == {role: first + i for i, role in enumerate(ROLES)} | bare.specials
    assert [tokenizer.special(role) for role in ROLES] == list(range(first, first + 6))
    assert tokenizer.vocab_size == first + 8
    assert tokenizer.decode([first + 6, first + 7, first]) == "<extra_id_0><extra_id_1><pad>"
    assert tokenizer.special("unk") == bare.unknown_id
    assert [bare.special(role) for role in ROLES] == [None] * 6, "the tokenizer that was asked stays as it was"


@pytest.mark.parametrize("name", SCHEMES)
def test_nothing_is_added_twice(name: str) -> None:
    tokenizer = MADE[name]
    assert tokenizer.with_specials(ROLES, ["<extra_id_1>", "<eos>"]) is tokenizer
    assert BARE[name].with_specials(()) is BARE[name]
    again = BARE[name].with_specials(["eos"]).with_specials(["pad", "eos", "pad"], ["<a>", "<a>"])
    first = BARE[name].vocab_size
    assert (again.special("eos"), again.special("pad"), again.vocab_size) == (first, first + 1, first + 3)


@pytest.mark.parametrize("name", SCHEMES)
@given(parts=st.lists(st.sampled_from(LITERALS) | SPACED, max_size=6))
def test_a_text_that_spells_one_has_the_ids_of_the_tokenizer_without(name: str, parts: list[str]) -> None:
    text = "".join(parts)
    assert MADE[name].encode(text) == BARE[name].encode(text)
    assert MADE[name].encode_offsets(text) == BARE[name].encode_offsets(text)
    assert MADE[name].encode_array(text).dtype == MADE[name].dtype


@pytest.mark.parametrize("name", SCHEMES)
def test_the_fast_coders_stay(name: str, tmp_path: Path) -> None:
    MADE[name].save(tmp_path)
    for tokenizer in (MADE[name], Tokenizer.load(tmp_path), pickle.loads(pickle.dumps(MADE[name]))):
        assert type(tokenizer._coder) is type(BARE[name]._coder)
        assert tokenizer.specials == MADE[name].specials
        assert tokenizer.encode(CORPUS + "<eos>") == BARE[name].encode(CORPUS + "<eos>")


def test_ids_of_bytes_are_wide_enough_for_what_was_added() -> None:
    ids = MADE["bytes"].encode_array("a<eos>")
    assert ids.dtype == np.uint16
    ids[0] = 300
    assert ids.tolist() == [300, *b"<eos>"]


@pytest.mark.parametrize("name", SCHEMES)
def test_they_are_skipped_in_decoding_only_when_asked(name: str) -> None:
    tokenizer = MADE[name]
    ids = [tokenizer.specials["bos"], *tokenizer.encode("To be"), tokenizer.specials["eos"], tokenizer.specials["pad"]]
    assert tokenizer.decode(ids) == "<bos>To be<eos><pad>"
    assert tokenizer.decode(ids, skip_special=True) == "To be"
    stream = StreamDecoder(tokenizer)
    assert stream.feed(ids) + stream.flush() == "<bos>To be<eos><pad>"


def test_the_unknown_token_of_words_is_not_skipped() -> None:
    tokenizer = MADE["words"]
    assert tokenizer.decode(tokenizer.encode("zebra"), skip_special=True) == "<unk>"


@pytest.mark.parametrize("name", SCHEMES)
def test_transformers_reads_the_same_ids_from_the_file(name: str, tmp_path: Path) -> None:
    MADE[name].save(tmp_path)
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), pad_token="<pad>", eos_token="<eos>"
    )
    assert (theirs.pad_token_id, theirs.eos_token_id, len(theirs)) == (
        MADE[name].special("pad"),
        MADE[name].special("eos"),
        MADE[name].vocab_size,
    )
    ids = [*MADE[name].encode("To be"), MADE[name].specials["eos"]]
    assert theirs.decode(ids, skip_special_tokens=True) == MADE[name].decode(ids, skip_special=True)


@pytest.mark.parametrize(
    ("roles", "extra", "sentence"),
    [
        (["ean"], [], "there is no special token for the role 'ean'; allowed: bos, cls, eos, mask, pad, sep, unk"),
        (["mak"], [], "there is no special token for the role 'mak'; did you mean 'mask'?"),
        (["unk"], [], "has no unknown token, and none can be added"),
        ([], [""], "a special token needs at least one character"),
    ],
)
def test_what_cannot_be_added_is_refused(roles: list[str], extra: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence.replace("?", r"\?")):
        BARE["bpe"].with_specials(roles, extra)


def test_a_role_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UserError, match="role 'eso'; did you mean 'eos'"):
        BARE["bpe"].special("eso")
    assert BARE["bpe"].special("unk") is None
    assert BARE["words"].with_specials(["unk"]) is BARE["words"]


def test_ids_with_gaps_are_refused_rather_than_used_twice() -> None:
    core = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 2, "<unk>": 3}, unk_token="<unk>"))
    with pytest.raises(UserError, match="'<pad>' cannot be added: the vocabulary's ids have gaps"):
        Tokenizer(core).with_specials(["pad"])


def unigram() -> tokenizers.Tokenizer:
    """As T5 does it: the special tokens are pieces of the model itself."""
    pieces = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        *((piece, -2.0) for piece in ("▁", "<", "/", "s", ">", "▁to", "be")),
    ]
    core = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=2))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.add_special_tokens(["<pad>", "</s>", "<unk>"])
    return core


def word_level() -> tokenizers.Tokenizer:
    core = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "[EOS]": 1, "to": 2}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens(["<unk>", "[EOS]"])
    return core


@pytest.mark.parametrize("through_a_file", [False, True])
def test_pieces_of_the_model_that_are_special_are_not_spelt_either(through_a_file: bool) -> None:
    tokenizer, words = Tokenizer(unigram()), Tokenizer(word_level())
    if through_a_file:
        tokenizer, words = Tokenizer.from_json(tokenizer.to_json()), Tokenizer.from_json(words.to_json())
    tokens = [tokenizer.core.id_to_token(index) for index in tokenizer.encode("to</s>be </s>")]
    assert tokens == ["▁to", "<", "/", "s", ">", "be", "▁", "<", "/", "s", ">"]
    assert (tokenizer.special("eos"), tokenizer.special("pad"), tokenizer.special("unk")) == (1, 0, 2)
    assert tokenizer.unknown("to!") == ["!"]
    assert words.encode("to [EOS] to") == [2, 0, 2]
    assert words.special("eos") == 1
    assert words.decode([2, 1], skip_special=True) == "to"


@pytest.mark.parametrize("name", SCHEMES)
@given(text=TEXTS)
def test_spans_cover_the_text_and_their_pieces(name: str, text: str) -> None:
    ids, spans = MADE[name].encode_offsets(text)
    assert ids == MADE[name].encode(text)
    assert len(spans) == len(ids)
    reached = 0
    for index, (begin, end) in zip(ids, spans, strict=True):
        assert begin <= reached <= end <= len(text)
        assert begin < end
        piece = MADE[name].decode([index])
        assert piece in (text[begin:end], "<unk>") or "\ufffd" in piece
        reached = end
    assert reached == len(text)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("text", [*BY_HAND, "a\ud800b", "\ud83d\udc4d be", "\ud83d👍\udc4dx", "👍\ud83d\udc4d\n\udc4d"])
def test_spans_count_the_characters_of_the_text_as_given(name: str, text: str) -> None:
    ids, spans = MADE[name].encode_offsets(text)
    assert ids == MADE[name].encode(text)
    assert [span[0] for span in spans[:1]] == [0] * bool(text)
    assert max((end for _, end in spans), default=0) == len(text)
    for index, (begin, end) in zip(ids, spans, strict=True):
        piece = MADE[name].decode([index])
        assert piece in (well_formed(text[begin:end]), "<unk>") or "\ufffd" in piece


def test_spans_are_of_the_text_before_normalisation() -> None:
    core = word_level()
    core.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    ids, spans = Tokenizer(core).encode_offsets("  É TÖ é")
    assert ids == [0, 2, 0]
    assert ["  É TÖ é"[slice(*span)] for span in spans] == ["É", "TÖ", "é"]


def test_roles_that_the_contents_do_not_tell_are_kept_in_the_file(tmp_path: Path) -> None:
    core = tokenizers.Tokenizer.from_str(BARE["bpe"].core.to_str())
    core.add_special_tokens(["<s>", "<|stop|>"])
    tokenizer = Tokenizer(core, {"cls": "<s>", "eos": "<|stop|>", "mask": "<nowhere>"})
    assert tokenizer.specials == {"bos": 300, "cls": 300, "eos": 301}
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.specials == pickle.loads(pickle.dumps(again)).specials == tokenizer.specials
    assert again.to_json() == tokenizer.to_json()
    more = again.with_specials(["eos", "pad"])
    assert more.specials == {"bos": 300, "cls": 300, "eos": 301, "pad": 302}
    more.save(tmp_path)
    assert Tokenizer.load(tmp_path).specials == more.specials
    assert len(json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]) == 3
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert theirs.encode("be é") == more.encode("be é")


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_special_tokens_in_a_text_are_plain_unless_asked_for(kind: str, tmp_path: Path) -> None:
    """As the transformers library with and without ``split_special_tokens``, of folders of three schemes."""
    scheme = spec.Tokenizer.kinds()[kind].parse({"vocab_size": 300})
    ours = train(scheme, ["the quick brown fox [jumps] over <the> lazy dog; mask MASK eos " * 20]).with_specials(
        ["mask", "eos"]
    )
    ours.save(tmp_path)
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), mask_token="<mask>", eos_token="<eos>"
    )
    for text in ("the <mask> fox", "<mask>", "fox<eos>dog <mask><mask> ", "no token < mask >"):
        heard = ours.reading_special.encode(text)
        assert heard == theirs(text, add_special_tokens=False).input_ids
        assert heard.count(ours.specials["mask"]) == text.count("<mask>")
        assert ours.specials["mask"] not in ours.encode(text)
        assert ours.encode(text) == theirs(text, add_special_tokens=False, split_special_tokens=True).input_ids
        assert ours.reading_special.decode(heard).split() == ours.decode(heard).split()
