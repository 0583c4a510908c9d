"""Marian folders without tokenizer.json: two SentencePiece models, ids in vocab.json, ids of the target of its own."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MarianConfig, MarianMTModel

import qkv
from qkv.cli.main import main
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer

SOURCE = {"▁": -2.0, "▁the": -2.5, "▁old": -3.0, "▁sea": -3.5, "s": -3.0, "ea": -4.0, "▁s": -3.25, "o": -5.5, "l": -5.0}
SOURCE |= {letter: -6.0 - i / 8 for i, letter in enumerate("abcdehnprtuy.")} | {"re": -4.5, "▁o": -4.0, "unread": -5.0}
TARGET = {"▁": -2.0, "▁das": -2.5, "▁alte": -3.0, "▁meer": -3.5, "ß": -6.0, "er": -3.25, "me": -4.0, "▁m": -3.0}
TARGET |= {letter: -6.0 - i / 8 for i, letter in enumerate("adelmnorsterü")}
SPECIALS = ("</s>", "<unk>", ">>deu<<", ">>nld<<")
TEXTS = ["the old sea", "the sea  read ", " re-read theatres", "", "soße", ">>deu<< the seal", "no öl. ööö", "ß o"]


def message(*fields: tuple[int, bytes | int | float | str]) -> bytes:
    """A message of Protocol Buffers, field by field."""
    found = b""
    for number, value in fields:
        if isinstance(value, float):
            found += bytes([number << 3 | 5]) + struct.pack("<f", value)
        elif isinstance(value, int):
            found += bytes([number << 3, value])
        else:
            data = value.encode() if isinstance(value, str) else value
            size = bytes([len(data) & 127 | 128, len(data) >> 7])
            found += bytes([number << 3 | 2]) + size + data
    return found


def pieces_file(scores: Mapping[str, float], kind: int = 1) -> bytes:
    """A SentencePiece model: <unk>, <s> and </s>, then the pieces."""
    first = [message((1, text), (3, form)) for text, form in (("<unk>", 2), ("<s>", 3), ("</s>", 3))]
    rest = [message((1, text), (2, score)) for text, score in scores.items()]
    return message(*((1, piece) for piece in (*first, *rest)), (2, message((3, kind))), (3, message((1, "identity"))))


def folder_of(path: Path, separate: bool = False) -> Path:
    """A folder with a tokenizer and a model with random weights."""
    both = dict.fromkeys((*SPECIALS, *TARGET, *(piece for piece in SOURCE if piece != "unread"), "<pad>"))
    ids = {token: i for i, token in enumerate(both)}
    own = {token: i for i, token in enumerate(("</s>", "<unk>", *reversed(TARGET), "<pad>"))}
    path.mkdir()
    (path / "source.spm").write_bytes(pieces_file(SOURCE))
    (path / "target.spm").write_bytes(pieces_file(TARGET))
    (path / "vocab.json").write_text(json.dumps(ids))
    settings: dict[str, Any] = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"}
    if separate:
        (path / "target_vocab.json").write_text(json.dumps(own))
        settings["separate_vocabs"] = True
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    write_model(path, len(ids), len(own) if separate else len(ids), separate)
    return path


def write_model(path: Path, sources: int, targets: int, separate: bool) -> None:
    """Write a model with random weights for ``sources`` and ``targets`` tokens, whose last one is for padding."""
    config = MarianConfig(
        vocab_size=sources,
        decoder_vocab_size=targets,
        share_encoder_decoder_embeddings=not separate,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=32,
        pad_token_id=targets - 1,
        decoder_start_token_id=targets - 1,
        eos_token_id=0,
        forced_eos_token_id=None,
        tie_word_embeddings=not separate,
    )
    torch.manual_seed(5)
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.copy_(1.2 * torch.randn(parameter.shape))
    model.generation_config.max_new_tokens = 11
    model.generation_config.no_repeat_ngram_size = 1  # random weights write the same token again and again
    model.save_pretrained(path)


def split(text: str, scores: Mapping[str, float]) -> list[str]:
    """Split a text into the pieces whose scores have the greatest sum; characters that are no pieces stay alone."""
    whole = "▁" + "▁".join(text.split()) if text.split() else ""
    worst = min(scores.values()) - 10
    best: list[tuple[float, list[str]]] = [(0.0, [])]
    for end in range(1, len(whole) + 1):
        known = [(scores[whole[begin:end]], begin) for begin in range(end) if whole[begin:end] in scores]
        several = [*known, *([] if whole[end - 1] in scores else [(worst, end - 1)])]
        best.append(max((best[begin][0] + score, [*best[begin][1], whole[begin:end]]) for score, begin in several))
    return best[-1][1]


def ids_by_hand(text: str, scores: Mapping[str, float], vocab: Mapping[str, int]) -> list[int]:
    """Ids of a text with its end; several unknown characters in a row are one token."""
    code, rest = (text[:7], text[7:]) if text.startswith(">>") else ("", text)
    ids = [vocab.get(piece, 1) for piece in ([code] if code else []) + split(rest, scores)]
    return [index for i, index in enumerate(ids) if index != 1 or i == 0 or ids[i - 1] != 1] + [0]


@pytest.mark.parametrize("separate", [False, True], ids=["one table of ids", "two"])
def test_ids_are_those_of_the_best_pieces(separate: bool, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "hf", separate)
    source, target = Tokenizer.load(folder), Tokenizer.load(folder / "target.spm")
    vocab = json.loads((folder / "vocab.json").read_text())
    written = json.loads((folder / ("target_vocab.json" if separate else "vocab.json")).read_text())
    pieces = {piece: score for piece, score in SOURCE.items() if piece != "unread"}
    for text in TEXTS:
        assert source.encode_framed(text).ids == ids_by_hand(text, pieces, vocab), text
    for text in ("das alte meer", "meere der seen", "ß m"):
        assert target.encode_framed(text).ids == ids_by_hand(text, TARGET, written), text
        assert target.decode(target.encode(text)) == text
    assert source.specials | {"pad": vocab["<pad>"]} == {"pad": vocab["<pad>"], "eos": 0, "unk": 1}


@pytest.mark.parametrize("separate", [False, True], ids=["one table of ids", "two"])
@torch.no_grad()
def test_translations_are_those_of_the_transformers_library(
    separate: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "hf", separate)
    theirs: Any = MarianMTModel.from_pretrained(folder).eval()
    vocab = json.loads((folder / "vocab.json").read_text())
    written = json.loads((folder / ("target_vocab.json" if separate else "vocab.json")).read_text())
    names = {index: token for token, index in written.items()}
    for text in ("the old sea", "the theatres"):
        ids = theirs.generate(torch.tensor([ids_by_hand(text, SOURCE, vocab)]), num_beams=1, do_sample=False)[0]
        wanted = "".join(names[i] for i in ids.tolist() if names[i] not in ("<pad>", "</s>", "<unk>"))
        assert len(set(wanted)) > 3
        assert qkv.predict(folder, text)[0]["answer"].replace(" ", "") == wanted.replace("▁", "")
    assert main(["predict", str(folder), "the old sea"]) == 0
    assert capsys.readouterr().out.strip()


def test_an_export_reads_as_the_folder_or_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path / "hf")
    assert main(["export", str(folder), "--no-check", "--out", str(tmp_path / "out")]) == 0
    assert "splits all texts as those of the input" in capsys.readouterr().err
    read = [Tokenizer.load(place).encode_framed("the old theatres").ids for place in (folder, tmp_path / "out")]
    assert read[0] == read[1]
    two = folder_of(tmp_path / "two", separate=True)
    assert main(["export", str(two), "--no-check", "--out", str(tmp_path / "no")]) == 2
    assert "uses different tokenizers for input and output" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("source.spm", b"", "source.spm is cut short or not a SentencePiece model"),
        ("source.spm", pieces_file(SOURCE)[:-40], "source.spm is cut short or not a SentencePiece model"),
        ("source.spm", b"a text and no model", "source.spm is cut short or not a SentencePiece model"),
        ("target.spm", pieces_file(TARGET, kind=2), "a SentencePiece model of the kind 'bpe'; allowed: 'unigram'"),
        ("vocab.json", b'{"</s>": 0, "<unk>": 2}', "vocab.json should hold the id of each token, from 0 on"),
        ("vocab.json", b'{"</s>": 0, "a": 1}', "vocab.json has no token '<unk>'"),
        ("vocab.json", b"[", "vocab.json cannot be read"),
    ],
)
def test_files_of_another_form_are_refused(file: str, content: bytes, sentence: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "hf")
    (folder / file).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        Tokenizer.load(folder / "target.spm" if file == "target.spm" else folder)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("separate", [False, True], ids=["one table of ids", "two"])
def test_ids_are_those_of_the_published_tokenizer(separate: bool, tmp_path: Path) -> None:
    """With the library sentencepiece only, also with its table of characters and pieces that it learns."""
    sentencepiece: Any = pytest.importorskip("sentencepiece")
    from transformers import MarianTokenizer

    folder = folder_of(tmp_path / "hf", separate)
    words = [(a, b) for a in ("old", "grey") for b in ("sea", "tree")]
    lines = [f"the {a} {b} reads n° {i}½ of “old” {b}s, in ｆｕｌｌ width" for i in range(40) for a, b in words]
    for name in ("source", "target"):
        stored = io.BytesIO()
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(lines), model_writer=stored, vocab_size=47, minloglevel=2
        )
        (folder / f"{name}.spm").write_bytes(stored.getvalue())
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    tokens = ["</s>", "<unk>", *(model.id_to_piece(i) for i in range(3, len(model))), ">>deu<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    if separate:
        (folder / "target_vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    theirs, ours = MarianTokenizer.from_pretrained(folder), Tokenizer.load(folder)
    for text in [*lines[:8], *TEXTS, "①ﬁ\ttabs\nand  lines", "日本", ">>deu<<the", "½½ 1½"]:
        assert ours.encode_framed(text).ids == theirs(text).input_ids, text
    target = Tokenizer.load(folder / "target.spm")
    assert target.encode_framed(lines[3]).ids == theirs(text_target=lines[3]).input_ids
    for text in lines[:8]:
        assert target.decode(target.encode(text)) == theirs.decode(target.encode(text))
