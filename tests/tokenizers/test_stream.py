"""Text while it arrives: the pieces joined are the text, and no piece holds half a character."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.tokenizers.texts import TEXTS
from tokenizers import decoders, models, pre_tokenizers

from qkv.spec import tokenizers as spec
from qkv.system.errors import UserError
from qkv.tokenizers.stream import StreamDecoder
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

CORPUS = "To be, or not to be — 漢字 👍🏽\n" * 3
SCHEMES = {
    "characters": spec.Characters(),
    "bytes": spec.Bytes(),
    "words": spec.Words(vocab_size=64),
    "word_list": spec.WordList(vocab_size=64),
    "bpe": spec.BPE(vocab_size=300),
    "code": spec.Code(vocab_size=300),
    "wordpiece": spec.WordPiece(vocab_size=120),
    "unigram": spec.Unigram(vocab_size=300),
    "amino_acids": spec.AminoAcids(),
}
MADE = {name: train(scheme, [CORPUS]).with_specials(["bos", "eos"]) for name, scheme in SCHEMES.items()}


def sentencepiece() -> Tokenizer:
    """A vocabulary whose decoder looks at neighbours: the first space is dropped, and bytes stand for what it lacks."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "b", "▁bc"]
    core = tokenizers.Tokenizer(models.Unigram([(token, -1.0) for token in tokens], unk_id=0, byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(core)


@pytest.mark.parametrize("name", SCHEMES)
@given(data=st.data())
def test_the_pieces_of_any_ids_are_the_decoded_text(name: str, data: st.DataObject) -> None:
    tokenizer = MADE[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    stream = StreamDecoder(tokenizer)
    text = "".join(stream.feed(ids[a:b]) for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True))
    assert text + stream.flush() == tokenizer.decode(ids)


@pytest.mark.parametrize("name", ["bytes", "bpe", "code", "unigram"])
@given(text=TEXTS)
def test_no_piece_holds_half_a_character(name: str, text: str) -> None:
    stream = StreamDecoder(MADE[name])
    text = text.replace("\ufffd", "")
    given = ""
    for index in MADE[name].encode(text):
        given += stream.feed([index])
        assert text.startswith(given)
    assert given == text
    assert stream.flush() == ""


def test_half_a_character_waits_and_then_shows_as_missing() -> None:
    stream = StreamDecoder(MADE["bytes"])
    thumb = "👍".encode()
    assert [stream.feed([byte]) for byte in thumb] == ["", "", "", "👍"]
    assert stream.feed(thumb[:2]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.feed([97]) == "a"


def test_bytes_that_cannot_begin_a_character_do_not_wait() -> None:
    stream = StreamDecoder(MADE["bytes"])
    assert [stream.feed([0xFF]) for _ in range(3)] == ["\ufffd"] * 3


@pytest.mark.parametrize("text", ["a bc", "a bé bc", "漢 b", ""])
def test_a_decoder_that_looks_at_neighbours(text: str) -> None:
    tokenizer = sentencepiece()
    assert tokenizer.token_bytes is None
    ids = tokenizer.encode(text)
    stream = StreamDecoder(tokenizer)
    pieces = [stream.feed([index]) for index in ids]
    assert "".join(pieces) + stream.flush() == tokenizer.decode(ids) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(stream.feed(ids)) == text, "after a flush a new text begins"


def test_half_a_character_of_neighbours_shows_at_the_end() -> None:
    tokenizer = sentencepiece()
    stream = StreamDecoder(tokenizer)
    ids = tokenizer.encode("a é")[:-1]
    assert stream.feed(ids) + stream.flush() == tokenizer.decode(ids)
    assert tokenizer.decode(ids).endswith("\ufffd")


def test_a_negative_id_is_refused_and_one_without_a_token_is_written_as_nothing() -> None:
    with pytest.raises(UserError, match="the id -1 is outside"):
        StreamDecoder(MADE["bytes"]).feed([-1])
    assert StreamDecoder(MADE["bytes"]).feed([97, 258, 98]) == "ab"
