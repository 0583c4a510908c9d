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
    lowercase: bool = False
    min_frequency: int = Field(default=1, gt=0, description="a word that is rarer is unknown")


class WordList(Tokenizer, kind="word_list"):
    """One id a word or punctuation mark, without the spaces: decoding puts one space between any two."""

    vocab_size: int = Field(default=16384, gt=2)
    lowercase: bool = True
    min_frequency: int = Field(default=2, gt=0, description="a word that is rarer is unknown")


class BPE(Tokenizer, kind="bpe"):
    """Byte-pair encoding over bytes (Sennrich et al. 2016; GPT-2 2019): every text, lossless."""

    vocab_size: int = Field(default=8192, gt=257)


class Code(Tokenizer, kind="code"):
    """Byte-pair encoding of source code: each digit alone, an indentation or other run of white space in one piece. Every text, lossless."""

    vocab_size: int = Field(default=8192, gt=257)


class WordPiece(Tokenizer, kind="wordpiece"):
    """Words from left to right by the longest known piece (Schuster & Nakajima 2012), cut and cleaned as BERT does (Devlin et al. 2019)."""

    vocab_size: int = Field(default=8192, gt=2)
    lowercase: bool = Field(default=True, description="also drops accents")


class Unigram(Tokenizer, kind="unigram"):
    """Each word cut into its most probable pieces (Kudo 2018), over bytes: every text, lossless."""

    vocab_size: int = Field(default=8192, gt=257)


class AminoAcids(Tokenizer, kind="amino_acids"):
    """One id a residue of a protein, in small or capital letters: the 20 amino acids, then B Z X U O J, then the unknown token."""


class TokenizerFile(Tokenizer, kind="file"):
    """A ``tokenizer.json``, or a folder of the Hugging Face form, as it is. A long text is encoded in parts that end at line ends."""

    path: str
