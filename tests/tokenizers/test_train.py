"""Training: what is learned, that it is learned again in the same way, and that a new scheme is one more entry."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator

import pytest
import tokenizers
from tests.tokenizers.texts import BY_HAND
from tokenizers import models, pre_tokenizers, trainers

from qkv.spec import tokenizers as spec
from qkv.spec.register import implementations, implements
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train
from qkv.tokenizers.waiting import interruptible

TEXTS = ["the cat sat on the mat\n", "the dog  sat\n", "a cat, a dog: cats & dogs\n"] * 5
SCHEMES = (
    spec.Characters(),
    spec.Bytes(),
    spec.Words(vocab_size=12),
    spec.WordList(vocab_size=12),
    spec.BPE(vocab_size=280),
    spec.Code(vocab_size=280),
    spec.WordPiece(vocab_size=40),
    spec.Unigram(vocab_size=280),
    spec.AminoAcids(),
)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.kind)
def test_equal_texts_give_equal_tokenizers(scheme: spec.Tokenizer) -> None:
    files = {train(scheme, iter(TEXTS)).core.to_str() for _ in range(3)}
    assert len(files) == 1


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.kind)
@pytest.mark.parametrize("text", [*BY_HAND, "\ud800 alone"])
def test_any_text_can_be_trained_on(scheme: spec.Tokenizer, text: str) -> None:
    tokenizer = train(scheme, [text])
    assert all(0 <= index < tokenizer.vocab_size for index in tokenizer.encode(text + "unseen é"))


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.kind)
def test_no_text_at_all_can_be_trained_on(scheme: spec.Tokenizer) -> None:
    tokenizer = train(scheme, [])
    assert len(tokenizer.encode("ab")) in (1, 2)


def test_bpe_merges_what_is_frequent_and_keeps_every_byte() -> None:
    tokenizer = train(spec.BPE(vocab_size=270), TEXTS)
    assert tokenizer.vocab_size == 270
    assert len(tokenizer.encode("the")) == 1
    assert tokenizer.decode(tokenizer.encode("Ünïcödé 👍")) == "Ünïcödé 👍"


def test_bpe_stops_where_the_text_has_nothing_more_to_merge() -> None:
    assert 256 < train(spec.BPE(vocab_size=5000), ["abc abc"]).vocab_size < 270


def test_each_text_stands_alone() -> None:
    assert train(spec.Words(), ["ab", "cd"]).unknown("abcd") == ["abcd"]


def test_every_scheme_of_the_spec_can_be_trained() -> None:
    ours = {part for part in spec.Tokenizer.kinds().values() if part.__module__ == spec.__name__}
    assert ours <= implementations(spec.Tokenizer, "qkv.tokenizers").keys()


def test_a_new_scheme_is_one_more_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec.Tokenizer, "_kinds", dict(spec.Tokenizer._kinds))

    class WordPiece(spec.Tokenizer, kind="wordpiece_of_a_test"):
        vocab_size: int = 40

    with pytest.raises(
        UserError,
        match="no module implements 'wordpiece_of_a_test'; import the file that does, or mark it with @implements",
    ):
        train(WordPiece(), TEXTS)

    @implements(WordPiece)
    def word_piece(scheme: WordPiece, texts: Iterable[str]) -> Tokenizer:
        core = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        core.pre_tokenizer = pre_tokenizers.Whitespace()
        learner = trainers.WordPieceTrainer(vocab_size=scheme.vocab_size, special_tokens=["[UNK]"], show_progress=False)
        core.train_from_iterator(texts, learner)
        return Tokenizer(core)

    tokenizer = train(WordPiece(), TEXTS)
    assert tokenizer.unknown("the cat é") == ["é"]
    assert 0 < tokenizer.vocab_size <= 40


def test_texts_are_read_once_and_in_order() -> None:
    seen: list[str] = []

    def texts() -> Iterator[str]:
        for text in TEXTS:
            seen.append(text)
            yield text

    train(spec.Characters(), texts())
    assert seen == TEXTS


def test_ctrl_c_ends_the_wait_for_native_work() -> None:
    go_on = threading.Event()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a program started in the background ignores it

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        go_on.wait(60)

    try:
        with pytest.raises(KeyboardInterrupt):
            interruptible(work)
        assert not go_on.is_set()
    finally:
        go_on.set()
        signal.signal(signal.SIGINT, before)


def test_native_work_gives_its_answer_or_its_error() -> None:
    assert interruptible(lambda: 7) == 7
    with pytest.raises(ValueError, match="no"):
        interruptible(lambda: int("no"))
