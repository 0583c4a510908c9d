"""``qkv tokenizer``."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from qkv.spec import tokenizers as spec
from qkv.tokenizers.tokenizer import Tokenizer

TEXT = "The quick brown fox jumps over the lazy dog; naïve 漢字 200\n" * 30
KINDS = sorted(kind for kind in spec.Tokenizer.kinds() if kind != "file")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_trained_from_a_file(qkv: Call, kind: str, text: Path, tmp_path: Path) -> None:
    said = qkv("tokenizer", "train", text, "--kind", kind, "--out", tmp_path / "made.json")
    assert (said.code, said.err) == (0, "")
    made = Tokenizer.load(tmp_path / "made.json")
    assert f"{len(TEXT):,}" in said.out
    assert str(made.vocab_size) in said.out
    assert f"{len(TEXT) / len(made.encode(TEXT)):.2f}".rstrip("0") in said.out


def test_options_reach_the_scheme(qkv: Call, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "made.json"
    assert (
        qkv("tokenizer", "train", text, "--kind", "wordpiece", "--vocab-size", 200, "--no-lowercase", "--out", out).code
        == 0
    )
    made = Tokenizer.load(out)
    assert made.vocab_size <= 200
    assert made.decode(made.encode("The fox")) == "The fox"
    assert (
        qkv("tokenizer", "train", text, "--kind", "words", "--lowercase", "--min-frequency", 31, "--out", out).code == 0
    )
    made = Tokenizer.load(out)
    assert made.unknown("THE fox") == ["fox"], "'the' stands in each line twice"


def test_packed_files_and_several_files_are_read(qkv: Call, text: Path, tmp_path: Path) -> None:
    packed = tmp_path / "more.txt.gz"
    packed.write_bytes(gzip.compress(b"zebra crossing " * 50))
    assert qkv("tokenizer", "train", text, packed, "--kind", "words", "--out", tmp_path / "made.json").code == 0
    assert Tokenizer.load(tmp_path / "made.json").unknown("The zebra fox horse") == ["horse"]


def test_equal_files_give_equal_tokenizers(qkv: Call, text: Path, tmp_path: Path) -> None:
    for kind in ("wordpiece", "unigram", "code"):
        made = set()
        for name in ("a.json", "b.json"):
            assert (
                qkv("tokenizer", "train", text, "--kind", kind, "--vocab-size", 300, "--out", tmp_path / name).code == 0
            )
            made.add((tmp_path / name).read_bytes())
        assert len(made) == 1


def test_residues_need_no_file(qkv: Call, tmp_path: Path) -> None:
    assert qkv("tokenizer", "train", "--kind", "amino_acids", "--out", tmp_path / "made.json").code == 0
    assert Tokenizer.load(tmp_path / "made.json").vocab_size == 27


def test_a_text_is_shown_by_pieces_ids_and_places(qkv: Call, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokenizer.json"
    assert qkv("tokenizer", "train", text, "--kind", "wordpiece", "--vocab-size", 100, "--out", out).code == 0
    said = qkv("tokenizer", "show", out, "The  NAÏVE?")
    assert (said.code, said.err) == (0, "")
    made = Tokenizer.load(out)
    ids, spans = made.encode_offsets("The  NAÏVE?")
    title, _, head, *rows = said.out.splitlines()
    assert title == f"11 characters, {len(ids)} ids"
    assert head.split() == ["piece", "id", "begin", "end", "text"]
    assert [row.split() for row in rows] == [
        [made.core.id_to_token(index), str(index), str(begin), str(end), repr("The  NAÏVE?"[begin:end])]
        for index, (begin, end) in zip(ids, spans, strict=True)
    ]
    assert qkv("tokenizer", "show", tmp_path, "The  NAÏVE?") == said
    assert qkv("tokenizer", "show", out, "").out.startswith("0 characters, 0 ids")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["trian"], "there is no action 'trian'; did you mean 'train'?"),
        (["train"], "the tokenizer 'bpe' is trained on text; name at least one text file"),
        (
            ["train", "TEXT", "--kind", "wrdpiece"],
            "there is no trainable tokenizer 'wrdpiece'; did you mean 'wordpiece'?",
        ),
        (["train", "TEXT", "--kind", "file"], "there is no trainable tokenizer 'file'; allowed: amino_acids, bpe"),
        (
            ["train", "TEXT", "--lowercase"],
            "--lowercase does not apply to the tokenizer 'bpe'; it applies to: word_list, wordpiece",
        ),
        (
            ["train", "TEXT", "--kind", "code", "--min-frequency", "2"],
            "--min-frequency does not apply to the tokenizer 'code'",
        ),
        (["train", "TEXT", "--vocab-size", "3"], "vocab_size: 3 given, but it should be greater than 257"),
        (["train", "nowhere.txt"], "nowhere.txt cannot be read: No such file or directory"),
        (["train", "FOLDER"], "cannot be read: Is a directory"),
        (["train", "EMPTY"], "there is no text in"),
        (["train", "LATIN"], "is not UTF-8 text: byte 0xe9 at offset 1"),
        (["train", "TEXT", "--out", "nowhere/made.json"], "--out: there is no folder 'nowhere'"),
        (
            ["show", "TEXT"],
            'show takes a tokenizer and one text, as in: qkv tokenizer show tokenizer.json "a text"; 1 were given',
        ),
        (["show", "nowhere.json", "a"], "the tokenizer nowhere.json cannot be read: No such file"),
        (["show", "TEXT", "a"], "is not a tokenizer.json"),
        (["show", "FOLDER", "a"], "holds no tokenizer: neither tokenizer.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_done_is_one_sentence(
    qkv: Call, args: list[str], sentence: str, text: Path, tmp_path: Path
) -> None:
    folder, empty, latin = tmp_path / "folder", tmp_path / "empty.txt", tmp_path / "latin.txt"
    folder.mkdir()
    empty.touch()
    latin.write_bytes(b"caf\xe9"[2:])
    places = {"TEXT": text, "FOLDER": folder, "EMPTY": empty, "LATIN": latin}
    said = qkv("tokenizer", *(places.get(arg, arg) for arg in args))
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_a_pipe_is_refused_and_not_waited_for(qkv: Call, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    said = qkv("tokenizer", "train", tmp_path / "pipe", "--out", tmp_path / "made.json")
    assert said.code == 2
    assert "pipe is not a regular file, and a text is read more than once" in said.err
