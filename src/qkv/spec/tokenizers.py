"""Specs of tokenizers."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from qkv.spec.base import Part


class Tokenizer(Part, slot=True):
    """Base class of tokenizers, trained on the training text or read from a file."""

    sample: ClassVar[int | None] = None
    """Number of characters of text that training needs; None: the whole text."""

    @property
    def num_ids(self) -> int | None:
        """Maximum vocabulary size; None if only the text or a file determines it."""
        return None


class LearnedTokenizer(Tokenizer):
    """Base class of tokenizers whose vocabulary has a given maximum size."""

    sample = 1 << 25
    vocab_size: int = Field(default=8192, gt=2)

    @property
    def num_ids(self) -> int | None:
        return self.vocab_size


class Characters(Tokenizer, kind="characters"):
    """One token per character of the training text; others become the unknown token."""


class Bytes(Tokenizer, kind="bytes"):
    """One token per UTF-8 byte: 256 ids; lossless for any text."""

    sample = 0

    @property
    def num_ids(self) -> int | None:
        return 256


class Words(LearnedTokenizer, kind="words"):
    """One token per word, run of spaces or punctuation mark; the ``vocab_size`` most frequent, others unknown."""

    vocab_size: int = Field(default=16384, gt=2)
    lowercase: bool = False
    min_frequency: int = Field(default=1, gt=0, description="rarer words become the unknown token")


class WordList(LearnedTokenizer, kind="word_list"):
    """One token per word or punctuation mark, without spaces; decoding joins tokens with single spaces."""

    vocab_size: int = Field(default=16384, gt=2)
    lowercase: bool = True
    min_frequency: int = Field(default=2, gt=0, description="rarer words become the unknown token")


class BPE(LearnedTokenizer, kind="bpe"):
    """Byte-level byte-pair encoding (Sennrich et al. 2016; GPT-2 2019); lossless for any text."""

    vocab_size: int = Field(default=8192, gt=257)


class Code(LearnedTokenizer, kind="code"):
    """Byte-pair encoding for source code: single digits, white space runs as one piece; lossless for any text."""

    vocab_size: int = Field(default=8192, gt=257)


class WordPiece(LearnedTokenizer, kind="wordpiece"):
    """Greedy longest-match word pieces (Schuster & Nakajima 2012).

    Normalisation and word splitting are BERT's (Devlin et al. 2019).
    """

    vocab_size: int = Field(default=8192, gt=2)
    lowercase: bool = Field(default=True, description="convert to lower case and drop accents")


class Unigram(LearnedTokenizer, kind="unigram"):
    """Unigram language model: most probable segmentation of words (Kudo 2018); byte-level, lossless for any text."""

    vocab_size: int = Field(default=8192, gt=257)


class AminoAcids(Tokenizer, kind="amino_acids"):
    """One token per residue of a protein, any case: the 20 amino acids, then B Z X U O J, then the unknown token."""

    sample = 0


class TokenizerFile(Tokenizer, kind="file"):
    """A ``tokenizer.json`` file or Hugging Face folder, unchanged. Long texts are encoded in parts cut at line ends."""

    sample = 0
    path: str
    chat_template: str | None = Field(default=None, description="chat template, if the file or folder holds none")
