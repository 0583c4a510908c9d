"""Train tokenizers from specs."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from qkv.spec import tokenizers as spec
from qkv.spec.register import implementation, implements
from qkv.tokenizers.byte_level import SYMBOLS
from qkv.tokenizers.coders import BYTE_WORDS, CHARACTERS, CODE, WHOLE_BYTES, WORD_LIST, WORDS
from qkv.tokenizers.learn import WORDPIECE_UNKNOWN, unigram_pieces, word_counts, wordpieces
from qkv.tokenizers.tokenizer import Tokenizer, well_formed
from qkv.tokenizers.waiting import interruptible

UNKNOWN = "<unk>"
"""Unknown token. It is longer than any character or punctuation mark and not a word, so splitting a text never produces
it.
"""


RESIDUES = "ACDEFGHIKLMNPQRSTVWY" + "BZXUOJ"


def train(spec: spec.Tokenizer, texts: Iterable[str]) -> Tokenizer:
    """Train the tokenizer of ``spec`` on ``texts``, independent texts that are read once, in order. The result is
    deterministic.

    Raises ``UserError`` for a kind of tokenizer that is not implemented.
    """
    return implementation(spec, "qkv.tokenizers")(spec, texts)


@implements(spec.Characters)
def characters(_spec: spec.Characters, texts: Iterable[str]) -> Tokenizer:
    """Train a character tokenizer: each distinct character is a token, ids in code point order, then the unknown
    token.
    """
    seen = np.zeros(0x110000, bool)
    for text in _joined(texts):
        seen[np.frombuffer(well_formed(text).encode("utf-32-le"), np.uint32)] = True
    return _word_level([chr(code) for code in np.flatnonzero(seen)], CHARACTERS)


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """Concatenate short texts into larger chunks for numpy."""
    some: list[str] = []
    length = 0
    for text in texts:
        some.append(text)
        length += len(text)
        if length > 1 << 16:
            yield "".join(some)
            some, length = [], 0
    yield "".join(some)


@implements(spec.Bytes)
def whole_bytes(_spec: spec.Bytes, _texts: Iterable[str]) -> Tokenizer:
    """Build a byte tokenizer: the id of a byte is its value; nothing is trained."""
    model = models.BPE(vocab={symbol: byte for byte, symbol in enumerate(SYMBOLS)}, merges=[])
    return Tokenizer(_assembled(model, WHOLE_BYTES, decoders.ByteLevel()))


@implements(spec.Words)
def words(spec: spec.Words, texts: Iterable[str]) -> Tokenizer:
    """Train a word tokenizer: words, runs of white space and punctuation marks are tokens.

    Ids follow descending frequency, ties by code point; the unknown token is last.
    """
    return _words(spec, texts, WORDS, decoders.Fuse())


@implements(spec.WordList)
def word_list(spec: spec.WordList, texts: Iterable[str]) -> Tokenizer:
    """Train a word tokenizer as ``words`` does, but drop white space; decoding puts a space between words."""
    return _words(spec, texts, WORD_LIST, None)


def _words(
    spec: spec.Words | spec.WordList, texts: Iterable[str], scheme: dict[str, Any], decoder: decoders.Decoder | None
) -> Tokenizer:
    core = _assembled(models.WordLevel({}, unk_token=UNKNOWN), scheme, decoder)
    if spec.lowercase:
        core.normalizer = normalizers.Lowercase()
    counts = word_counts(core, map(well_formed, texts), spec.vocab_size - 1, spec.min_frequency)
    core.model = models.WordLevel(_numbered([*counts, UNKNOWN]), unk_token=UNKNOWN)
    return Tokenizer(core)


@implements(spec.BPE)
def bpe(spec: spec.BPE, texts: Iterable[str]) -> Tokenizer:
    """Train the byte-level BPE tokenizer of GPT-2; the vocabulary always includes all 256 bytes."""
    return _byte_pairs(BYTE_WORDS, spec.vocab_size, texts)


@implements(spec.Code)
def code(spec: spec.Code, texts: Iterable[str]) -> Tokenizer:
    """Train a byte-level BPE tokenizer for source code: merges stay within a name, a digit, a run of operators or a run
    of white space.
    """
    return _byte_pairs(CODE, spec.vocab_size, texts)


def _byte_pairs(scheme: dict[str, Any], vocab_size: int, texts: Iterable[str]) -> Tokenizer:
    core = _assembled(models.BPE(), scheme, decoders.ByteLevel())
    learner = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=sorted(SYMBOLS), special_tokens=[], show_progress=False
    )
    interruptible(lambda: core.train_from_iterator(map(well_formed, texts), learner))
    return Tokenizer(core)


@implements(spec.WordPiece)
def wordpiece(spec: spec.WordPiece, texts: Iterable[str]) -> Tokenizer:
    """Train a WordPiece tokenizer with BERT's normalisation: control characters removed, ideographs and punctuation
    split off, accents removed if lowercased.

    A word with an unknown character, or of more than 100 characters, is one unknown token. Decoding puts spaces between
    words, except before . , ? !
    """

    def assembled(model: models.Model) -> tokenizers.Tokenizer:
        core = tokenizers.Tokenizer(model)
        core.normalizer = normalizers.BertNormalizer(lowercase=spec.lowercase)
        core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        core.decoder = decoders.WordPiece(cleanup=True)
        return core

    learner = assembled(models.WordPiece(unk_token=WORDPIECE_UNKNOWN))
    vocab = wordpieces(learner, [well_formed(text) for text in texts], spec.vocab_size)
    return Tokenizer(assembled(models.WordPiece(vocab, unk_token=WORDPIECE_UNKNOWN)))


@implements(spec.Unigram)
def unigram(spec: spec.Unigram, texts: Iterable[str]) -> Tokenizer:
    """Train a Unigram tokenizer over GPT-2's byte-level words instead of SentencePiece's characters, so that no text
    has unknown pieces.
    """
    core = _assembled(models.Unigram(), BYTE_WORDS, decoders.ByteLevel())
    core.model = models.Unigram(unigram_pieces(core, map(well_formed, texts), spec.vocab_size))
    return Tokenizer(core)


@implements(spec.AminoAcids)
def amino_acids(_spec: spec.AminoAcids, _texts: Iterable[str]) -> Tokenizer:
    """Build a tokenizer of the amino acid letters of IUPAC and IUBMB.

    B stands for D or N, Z for E or Q, J for I or L, U for selenocysteine, O for pyrrolysine, and X for any.
    """
    core = _assembled(models.WordLevel(_numbered([*RESIDUES, UNKNOWN]), unk_token=UNKNOWN), CHARACTERS, decoders.Fuse())
    core.normalizer = normalizers.Sequence(
        [normalizers.Replace(letter, letter.upper()) for letter in string.ascii_lowercase]
    )
    return Tokenizer(core)


@implements(spec.TokenizerFile)
def file(spec: spec.TokenizerFile, _texts: Iterable[str]) -> Tokenizer:
    """Load the tokenizer from the file or folder that ``spec`` names; nothing is trained."""
    tokenizer = Tokenizer.load(spec.path)
    if tokenizer.chat_template is None and spec.chat_template is not None:
        return tokenizer.with_chat_template(spec.chat_template)
    return tokenizer


def _word_level(tokens: list[str], scheme: dict[str, Any]) -> Tokenizer:
    model = models.WordLevel(_numbered([*tokens, UNKNOWN]), unk_token=UNKNOWN)
    return Tokenizer(_assembled(model, scheme, decoders.Fuse()))


def _numbered(tokens: list[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}


def _assembled(model: models.Model, scheme: dict[str, Any], decoder: decoders.Decoder | None) -> tokenizers.Tokenizer:
    core = tokenizers.Tokenizer(model)
    core.pre_tokenizer = _cutter(scheme)
    if decoder is not None:
        core.decoder = decoder
    return core


def _cutter(scheme: dict[str, Any]) -> pre_tokenizers.PreTokenizer:
    if scheme["type"] == "Sequence":
        return pre_tokenizers.Sequence([_cutter(part) for part in scheme["pretokenizers"]])
    if scheme["type"] == "Split":
        return pre_tokenizers.Split(
            tokenizers.Regex(scheme["pattern"]["Regex"]), scheme["behavior"].lower(), scheme["invert"]
        )
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=scheme["use_regex"])
