"""A corpus: training and held-out parts, ids equal to whole encoding, the cache, every text too short or bad."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.corpora import corpus_of
from tokenizers import models

from qkv.data.corpora import corpus as module
from qkv.data.corpora import text as text_module
from qkv.data.corpora.corpus import Corpus, open_corpus
from qkv.data.corpora.named import KNOWN, Known, PublishedFile
from qkv.spec import tokenizers as schemes
from qkv.spec.data import Data, LengthBuckets, Packed, RandomCrops
from qkv.spec.register import PARTS
from qkv.system.errors import UserError
from qkv.tokenizers.coders import SpaceBorders
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

PROSE = "It was the best of times,\nit was the worst of times — 漢字.\n\nIt  was\tthe age of wisdom 👍🏽\r\n" * 8
SCHEMES = (schemes.Characters(), schemes.Bytes(), schemes.Words(vocab_size=30), schemes.BPE(vocab_size=270))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def both(corpus: Corpus) -> str:
    return corpus.tokenizer.decode(corpus.train) + corpus.tokenizer.decode(corpus.validation)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.kind)
def test_ids_are_those_of_each_part_encoded_whole(
    scheme: schemes.Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "BLOCK", 11)
    monkeypatch.setattr(SpaceBorders, "piece_size", 16)
    corpus = corpus_of(tmp_path, PROSE, tokenizer=scheme)
    border = int(len(PROSE) * 0.75)
    assert corpus.train.tolist() == corpus.tokenizer.encode(PROSE[:border])
    assert corpus.validation.tolist() == corpus.tokenizer.encode(PROSE[border:])


@settings(max_examples=40)
@given(text=st.text(min_size=40, max_size=90), fraction=st.floats(0.1, 0.9))
def test_the_last_characters_are_held_out_and_nothing_is_lost(text: str, fraction: float, tmp_path: Path) -> None:
    text = "x" + text
    corpus = corpus_of(tmp_path, text, fraction=fraction)
    train, validation = (corpus.splits[name].counts for name in ("train", "validation"))
    assert train.characters == int(len(text) * (1 - fraction))
    assert train.characters + validation.characters == len(text)
    assert both(corpus) == text, "bytes are cut between characters"


def test_nine_tenths_as_others_cut_them(tmp_path: Path) -> None:
    text = "0123456789" * 111 + "abcd"
    corpus = corpus_of(tmp_path, text, tokenizer=schemes.Characters(), fraction=0.1)
    assert corpus.tokenizer.decode(corpus.train) == text[: int(len(text) * 0.9)]


def test_the_tokenizer_is_trained_on_the_training_part_alone(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, "abc " * 30 + "xyz " * 10, tokenizer=schemes.Characters())
    assert corpus.tokenizer.vocab_size == 5
    assert corpus.tokenizer.unknown("xa") == ["x"]
    assert [corpus.splits[name].counts.unknown for name in ("train", "validation")] == [0, 30]


def test_the_counts_are_those_by_hand(tmp_path: Path) -> None:
    text = "ä b\n\n\n\n" + "cc\n\n" + "d" * 5 + "\n\n" + "é漢\n\n" + "f"
    corpus = corpus_of(tmp_path, text, Packed(), fraction=6 / len(text))
    assert corpus.name == str(tmp_path / "text.txt")
    train, validation = (corpus.splits[name].counts for name in ("train", "validation"))
    assert (train.characters, train.bytes, train.tokens, train.documents, train.unknown) == (17, 18, 18, 3, 0)
    assert (train.bytes_per_token, train.characters_per_token) == (1.0, 17 / 18)
    assert (validation.characters, validation.bytes, validation.documents) == (6, 9, 2)
    assert corpus.splits["train"].documents.tolist() == [0, 8, 12]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.kind)
@pytest.mark.parametrize("batching", [Packed(), LengthBuckets(), Packed(separator="the")], ids=lambda b: b.kind)
def test_each_document_is_encoded_by_itself(
    scheme: schemes.Tokenizer, batching: Packed | LengthBuckets, tmp_path: Path
) -> None:
    corpus = corpus_of(tmp_path, PROSE, batching, scheme)
    part = PROSE[: int(len(PROSE) * 0.75)]
    texts = [text for text in part.replace(batching.separator, batching.separator + "\0").split("\0") if text]
    documents = corpus.splits["train"].documents
    found = [corpus.train[a:b].tolist() for a, b in zip(documents, [*documents[1:], None], strict=True)]
    expected: list[list[int]] = []
    for text in texts:
        ids = corpus.tokenizer.encode(text)
        if text == batching.separator and expected:
            expected[-1] += ids
        else:
            expected.append(ids)
    assert found == expected
    assert len(found) == corpus.splits["train"].counts.documents > 3


def test_a_text_that_begins_with_separators_has_a_first_document(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, "\n\n\nab\ncd\nef\n", LengthBuckets())
    assert corpus.splits["train"].documents.tolist() == [0, 3, 6]


@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [(schemes.Bytes(), np.uint8), (schemes.Characters(), np.uint8), (schemes.BPE(vocab_size=270), np.uint16)],
)
def test_ids_lie_in_the_smallest_type_mapped_from_the_disk(
    scheme: schemes.Tokenizer, dtype: type, tmp_path: Path
) -> None:
    corpus = corpus_of(tmp_path, PROSE, tokenizer=scheme)
    for ids in (corpus.train, corpus.validation):
        assert ids.dtype == dtype
        assert not ids.flags.writeable
        assert not ids.flags.owndata


class Counted:
    """How often a corpus was built."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times, real = 0, module._build

        def build(*args: object) -> None:
            self.times += 1
            real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(module, "_build", build)


def test_a_corpus_is_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    first, again = (corpus_of(tmp_path, PROSE, tokenizer=schemes.BPE(vocab_size=270)) for _ in range(2))
    assert counted.times == 1
    assert np.array_equal(first.train, again.train)
    assert first.tokenizer.core.to_str() == again.tokenizer.core.to_str()
    assert [split.counts for split in first.splits.values()] == [split.counts for split in again.splits.values()]


def test_whatever_decides_the_ids_makes_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    corpus_of(tmp_path, PROSE)
    corpus_of(tmp_path, PROSE + "more")
    corpus_of(tmp_path, PROSE, fraction=0.3)
    corpus_of(tmp_path, PROSE, Packed())
    corpus_of(tmp_path, PROSE, LengthBuckets())
    corpus_of(tmp_path, PROSE, tokenizer=schemes.Words(vocab_size=10))
    corpus_of(tmp_path, PROSE, tokenizer=schemes.Words(vocab_size=11))
    assert counted.times == 7
    corpus_of(tmp_path, PROSE, LengthBuckets(buckets=3))
    assert counted.times == 7, "buckets are no matter of ids"


def test_a_changed_tokenizer_file_makes_another_folder(tmp_path: Path) -> None:
    path, scheme = tmp_path / "tokenizer.json", schemes.TokenizerFile(path=str(tmp_path / "tokenizer.json"))
    train(schemes.Bytes(), []).save(path)
    before = corpus_of(tmp_path, PROSE, tokenizer=scheme)
    train(schemes.BPE(vocab_size=270), [PROSE]).save(path)
    after = corpus_of(tmp_path, PROSE, tokenizer=scheme)
    assert len(after.train) < len(before.train)


def test_a_given_tokenizer_is_used_as_it_is(tmp_path: Path) -> None:
    given = train(schemes.Characters(), ["It was"])
    (tmp_path / "text.txt").write_text(PROSE, encoding="utf-8")
    corpus = open_corpus(Data(source=str(tmp_path / "text.txt")), given)
    assert corpus.tokenizer.vocab_size == 7
    assert corpus.train[:6].tolist() == given.encode("It was")


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: os.truncate(folder / "train.ids", 5),
        lambda folder: os.truncate(folder / "train.ids", 5000),
        lambda folder: os.truncate(folder / "validation.documents", 0),
        lambda folder: (folder / "validation.ids").unlink(),
        lambda folder: (folder / "counts.json").write_text("{"),
        lambda folder: (folder / "counts.json").write_text("[]"),
        lambda folder: (folder / "counts.json").write_text('{"dtype": "|u1", "splits": {"train": {}}}'),
    ],
    ids=["short", "long", "documents", "missing", "no json", "other json", "empty counts"],
)
def test_a_damaged_folder_is_made_anew(
    damage: object, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    before = corpus_of(tmp_path, PROSE).train.tolist()
    (folder,) = (own_cache / "ids").iterdir()
    damage(folder)  # type: ignore[operator]
    assert corpus_of(tmp_path, PROSE).train.tolist() == before
    assert counted.times == 2


def test_a_tokenizer_is_trained_once_and_again_if_its_file_is_damaged(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[object] = []
    monkeypatch.setattr(module, "train", lambda scheme, texts: trained.append(scheme) or train(scheme, texts))
    scheme = schemes.BPE(vocab_size=270)
    before = [corpus_of(tmp_path, PROSE, tokenizer=scheme).train.tolist() for _ in range(2)]
    assert trained == [scheme]
    (folder,) = (own_cache / "tokenizers").iterdir()
    (folder / "tokenizer.json").write_text("{}")
    assert corpus_of(tmp_path, PROSE, tokenizer=scheme).train.tolist() == before[0] == before[1]
    assert trained == [scheme, scheme]


def test_a_run_that_goes_on_with_its_own_tokenizer_finds_the_same_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    for scheme in SCHEMES:
        corpus = corpus_of(tmp_path, PROSE, tokenizer=scheme)
        corpus.tokenizer.save(tmp_path / "tokenizer.json")
        data = Data(source=str(tmp_path / "text.txt"), tokenizer=scheme, validation_fraction=0.25)
        assert np.array_equal(open_corpus(data, Tokenizer.load(tmp_path)).train, corpus.train)
    assert counted.times == len(SCHEMES)


@pytest.mark.parametrize(
    ("text", "fraction", "sentence"),
    [
        (b"", 0.1, "'{path}' is empty; a text needs at least 4 characters"),
        (gzip.compress(b""), 0.1, "'{path}' is empty; a text needs at least 4 characters"),
        (b"\xef\xbb\xbf", 0.1, "'{path}' is empty; a text needs at least 4 characters"),
        (
            b"x",
            0.1,
            "'{path}' holds 1 character; validation_fraction=0.1 leaves 0 for training and 1 for validation, "
            "and each needs at least 2",
        ),
        (
            b"0123456789",
            0.1,
            "'{path}' holds 10 characters; validation_fraction=0.1 leaves 9 for training and 1 for validation, "
            "and each needs at least 2",
        ),
    ],
    ids=["empty", "empty, packed", "byte order mark", "one character", "ten characters"],
)
def test_a_text_too_short_to_be_parted_is_refused(text: bytes, fraction: float, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        corpus_of(tmp_path, text, fraction=fraction)
    assert str(caught.value) == "data.source: " + sentence.format(path=tmp_path / "text.txt")


def test_four_characters_are_enough(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, "abcd", fraction=0.5)
    assert (corpus.train.tolist(), corpus.validation.tolist()) == ([97, 98], [99, 100])


def test_bad_bytes_leave_nothing_in_the_cache(tmp_path: Path, own_cache: Path) -> None:
    with pytest.raises(UserError, match=r"byte 0xff at offset 100 \(line 1\)"):
        corpus_of(tmp_path, b"x" * 100 + b"\xff")
    assert list((own_cache / "ids").iterdir()) == []


def test_a_disk_that_is_full_is_said_in_one_sentence(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UserError, match=r"can be written neither to the cache .*\(No space left on device\) nor to"):
        corpus_of(tmp_path, PROSE)
    assert not [path for path in own_cache.rglob("*") if path.is_file()]


def test_a_tokenizer_that_gives_no_ids_is_refused(tmp_path: Path) -> None:
    Tokenizer(tokenizers.Tokenizer(models.BPE(vocab={"q": 0}, merges=[]))).save(tmp_path / "tokenizer.json")
    with pytest.raises(
        UserError,
        match=r"no token comes from the 480 characters of a split of '.*text\.txt'; choose a tokenizer",
    ):
        corpus_of(tmp_path, "x" * 640, tokenizer=schemes.TokenizerFile(path=str(tmp_path)))


def test_a_source_with_its_own_held_out_part_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for name, content in (("train.txt", b"learn this"), ("valid.txt", b"predict that")):
        (tmp_path / "two").mkdir(exist_ok=True)
        (tmp_path / "two" / f"{name}.gz").write_bytes(gzip.compress(content))
        files.append(PublishedFile(name, "http://127.0.0.1:9/", len(content), hashlib.sha256(content).hexdigest()))
    monkeypatch.setitem(KNOWN, "two", Known(*files))
    monkeypatch.setenv("QKV_DATA", str(tmp_path))
    corpus = open_corpus(Data(source="two", tokenizer=schemes.Bytes()))
    assert (bytes(corpus.train), bytes(corpus.validation)) == (b"learn this", b"predict that")
    assert corpus.name == "two"


def test_only_a_spread_sample_of_a_long_text_is_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "BLOCK", 1000)
    monkeypatch.setattr(SpaceBorders, "piece_size", 500)
    read: list[str] = []

    def trainer(_: object, texts: object) -> Tokenizer:
        read.extend(texts)  # type: ignore[arg-type]
        return train(schemes.Bytes(), [])

    monkeypatch.setitem(PARTS, schemes.BPE, trainer)
    monkeypatch.setattr(schemes.BPE, "sample", 4000)
    text = " ".join(map(str, range(5000)))
    corpus_of(tmp_path, text, tokenizer=schemes.BPE(vocab_size=270))
    assert 2000 < sum(map(len, read)) <= 5000
    places = [text.index(piece) for piece in read]
    assert places == sorted(places)
    assert places[-1] > len(text) / 2
    assert len(text) * 0.75 > places[-1] + len(read[-1])


@pytest.mark.data
def test_shakespeare_has_the_usual_split(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = open_corpus(Data(source="tinyshakespeare", batching=RandomCrops()))
    assert (len(corpus.train), len(corpus.validation)) == (1003854, 111540)
    assert corpus.tokenizer.vocab_size == 66
    assert corpus.train[:10].tolist() == [18, 47, 56, 57, 58, 1, 15, 47, 58, 47]
