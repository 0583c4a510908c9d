"""How text becomes ids, as data."""

from __future__ import annotations

from pydantic import Field

from qkv.spec.base import Part


class Tokenizer(Part, slot=True):
    """A scheme that is trained on the training text, or read from a file."""


class Characters(Tokenizer, kind="characters"):
    """One id a character that the training text contains; others become the unknown token."""


class Bytes(Tokenizer, kind="bytes"):
    """One id a byte of UTF-8: 256 ids, every text, lossless."""


class Words(Tokenizer, kind="words"):
    """One id a word, run of spaces or punctuation mark; the ``vocab_size`` most frequent, others unknown."""

    vocab_size: int = Field(default=16384, gt=2)


class BPE(Tokenizer, kind="bpe"):
    """Byte-pair encoding over bytes (Sennrich et al. 2016; GPT-2 2019): every text, lossless."""

    vocab_size: int = Field(default=8192, gt=257)


class TokenizerFile(Tokenizer, kind="file"):
    """A ``tokenizer.json``, or the folder that holds one, as it is. A long text is encoded in parts that end at line ends."""

    path: str
