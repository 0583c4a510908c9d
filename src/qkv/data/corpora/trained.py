"""Tokenizers trained on given texts, with a cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from qkv.data.cache import stored
from qkv.spec import tokenizers as spec
from qkv.system.errors import UserError
from qkv.system.files import write_file
from qkv.tokenizers.tokenizer import FILE_NAME, Tokenizer
from qkv.tokenizers.train import train

SHELF = "tokenizers"


def trained_on(scheme: spec.Tokenizer, texts: Sequence[str]) -> Tokenizer:
    """Train a tokenizer of the kind ``scheme`` on ``texts``; cached by their content."""
    if scheme.sample == 0:
        return train(scheme, ())
    return stored(SHELF, _key(scheme, texts), load, lambda folder: save(train(scheme, texts), folder))


def _key(scheme: spec.Tokenizer, texts: Sequence[str]) -> str:
    """Compute a cache key: hash of the tokenizer's settings and of the texts."""
    total = hashlib.sha256(json.dumps([scheme.to_dict(), tokenizers.__version__, len(texts)]).encode())
    for text in texts:
        content = text.encode(errors="surrogatepass")
        total.update(len(content).to_bytes(8, "little"))
        total.update(content)
    return total.hexdigest()[:32]


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer's file into ``folder``, to be read by ``load``."""
    write_file(folder / FILE_NAME, tokenizer.core.to_str().encode())


def load(folder: Path) -> Tokenizer | None:
    """Read the tokenizer in ``folder``; None if missing or damaged."""
    try:
        return Tokenizer.load(folder / FILE_NAME)
    except UserError:
        return None
