"""Memory does not grow with the text, and batches are cheap."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.data.corpora import corpus_of

from qkv.data.batching import batches as batches_module
from qkv.data.batching.batches import Batches
from qkv.data.corpora import corpus as corpus_module
from qkv.data.corpora.corpus import open_corpus
from qkv.spec import tokenizers as schemes
from qkv.spec.data import Data, LengthBuckets, Packed, RandomCrops

MEGABYTE = 1 << 20
LONG = 64
"""Megabytes of the long text: a copy of it in any form would be seen."""


@pytest.fixture(scope="module")
def long_text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("long") / "long.txt"
    generator = np.random.default_rng(0)
    letters = np.frombuffer(b"aaaaabcdeeeeeefghiiijklmnnooopqrsstttuvwxyz       \n", np.uint8)
    block = generator.choice(letters, 4 * MEGABYTE).tobytes()
    with path.open("wb") as file:
        for _ in range(LONG // 4):
            file.write(block)
    yield path
    path.unlink()


@pytest.mark.parametrize(
    ("scheme", "batching", "most"),
    [
        (schemes.Characters(), RandomCrops(), 12),
        (schemes.Bytes(), Packed(), 12),
        (schemes.Bytes(), LengthBuckets(separator="zz"), 40),
    ],
    ids=["characters", "packed bytes", "buckets"],
)
def test_a_long_text_takes_little_memory(
    scheme: schemes.Tokenizer, batching: RandomCrops | Packed | LengthBuckets, most: int, long_text: Path
) -> None:
    tracemalloc.start()
    try:
        corpus = open_corpus(Data(source=str(long_text), tokenizer=scheme, batching=batching))
        batches = Batches(corpus, batching, 12, 64)
        for step in range(100):
            batches.batch(step)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(corpus.train) + len(corpus.validation) == LONG // 4 * 4 * MEGABYTE
    assert peak < most * MEGABYTE, f"{peak / MEGABYTE:.1f} MB"


def test_pages_that_were_read_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpus_of(tmp_path, "some text " * 100)
    released: list[object] = []
    monkeypatch.setattr(corpus_module.Split, "release", lambda self: released.append(self))
    monkeypatch.setattr(batches_module, "RELEASE_EVERY", 10)
    batches = Batches(corpus, RandomCrops(), 2, 8)
    for step in range(30):
        batches.batch(step)
    assert released == [corpus.splits["train"]] * 3
    assert len(list(batches.validation())) == 16
    assert released[3:] == [corpus.splits["validation"]] * 2


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="this system does not say which pages are mapped")
def test_what_was_given_back_can_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "RESIDENT", 0)
    corpus = corpus_of(tmp_path, "some text " * 10_000)
    before = corpus.train.copy()
    resident = _resident(corpus)
    corpus.splits["train"].release()
    assert _resident(corpus) < resident
    assert np.array_equal(corpus.train, before)


def _resident(corpus: corpus_module.Corpus) -> int:
    """Pages of the training ids that this process has mapped, as the system counts them."""
    start = corpus.train.__array_interface__["data"][0]
    lines = iter(Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines())
    next(line for line in lines if line.startswith(f"{start:x}-"))
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
