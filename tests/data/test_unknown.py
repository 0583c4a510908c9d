"""Unknown tokens of a text: their number, their bytes, and what they do to bits per byte."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.corpora.corpus import open_corpus, open_whole
from qkv.spec.data import Data
from qkv.spec.tokenizers import Characters, Words
from qkv.tasks.dataset import Scale
from qkv.tasks.task import Totals
from qkv.tasks.text.next_token import language_figures
from qkv.tokenizers.train import train


@given(known=st.text("abc ", min_size=1), text=st.text("abcdäß日😀 "))
def test_bytes_of_unknown_characters(known: str, text: str) -> None:
    tokenizer = train(Characters(), [known])
    strange = [sign for sign in text if sign not in known]
    assert tokenizer.unknown_bytes([text, text]) == 2 * sum(len(sign.encode()) for sign in strange)


def test_bytes_of_unknown_words() -> None:
    tokenizer = train(Words(vocab_size=4), ["the cat the dog the"])
    known = tokenizer.unknown_bytes(["the the"])
    assert known == 0
    assert tokenizer.unknown_bytes(["the Größe the"]) == len("Größe".encode())


def test_a_text_is_counted_with_its_unknown_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 40)
    (tmp_path / "b.txt").write_text("ผมชอบ " * 50)
    data = Data(source=str(tmp_path / "a.txt"))
    corpus = open_corpus(data)
    assert all(split.counts.unknown == split.counts.unknown_bytes == 0 for split in corpus.splits.values())
    counts = open_whole(data, str(tmp_path / "b.txt"), corpus.tokenizer, "data").splits["data"].counts
    assert (counts.tokens, counts.unknown, counts.unknown_bytes) == (300, 250, 750)


def test_an_unknown_byte_costs_8_bits_more() -> None:
    seen = Totals()
    seen.loss, seen.count = 10 * math.log(2), 10
    known = language_figures(seen, Scale(1.0, 2.0))
    assert known["bits_per_byte"] == pytest.approx(0.5)
    assert "unknown_tokens" not in known
    strange = language_figures(seen, Scale(1.0, 2.0, (), 0.25, 0.5))
    assert strange["bits_per_byte"] == pytest.approx((1 + 8 * 0.5) / 2)
    assert strange["bits_per_character"] == pytest.approx(1 + 8 * 0.5)
    assert (strange["unknown_tokens"], strange["loss"]) == (25.0, known["loss"])
