"""Corpora of given texts, made through the same door as a user's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.data.corpora.corpus import Corpus, open_corpus
from qkv.spec.data import Batching, Data, RandomCrops
from qkv.spec.tokenizers import Bytes, Tokenizer


def corpus_of(
    folder: Path,
    text: str | bytes,
    batching: Batching | None = None,
    tokenizer: Tokenizer | None = None,
    fraction: float = 0.25,
) -> Corpus:
    """``text`` written to a file in ``folder`` and opened."""
    path = folder / "text.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_corpus(
        Data(
            source=str(path),
            tokenizer=tokenizer or Bytes(),
            batching=batching or RandomCrops(),
            validation_fraction=fraction,
        )
    )


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """``folder`` as the working folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
