"""Encoders of sentences, lists of words, for tagging: by a tokenizer, word by word, or as features of the words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from qkv.data.features.word_features import hashed_words
from qkv.data.vocabulary import Vocabulary
from qkv.spec.processors import WordFeatures
from qkv.system.errors import UserError
from qkv.tasks.example_task import Truncation
from qkv.tokenizers.tokenizer import Tokenizer

WORDS = "words"
"""Name of the processor of words in a vocabulary without a tokenizer."""
ROLE = "sentence"
"""Role of the words in the limits of a ``Truncation``."""
Pieces = Callable[[str, bool], tuple[list[int], int]]
_WORD = re.compile(r"\S+")


class Sentence(NamedTuple):
    """Encoded sentence.

    values: truncated token ids (N), or features of the words (N, F).   types: token types, if the model reads them.
    heads: position of the first token of each word that is not truncated; the model predicts the word's tag there.
    """

    values: np.ndarray
    types: np.ndarray
    heads: list[int]


Reader = Callable[[Sequence[str]], Sentence]
"""Function that encodes, truncates and, with a tokenizer, frames the words of a sentence."""
Span = tuple[int, int]
"""Offsets [begin, end) in a text, in characters."""
TextReader = Callable[[str], tuple[Sentence, list[Span]]]
"""Function that splits a text into words and encodes it: (sentence, span of each word)."""


def reader(vocabulary: Vocabulary, cut: Truncation) -> Reader:
    """Return the encoder of sentences: the processor of words if the vocabulary has one, else its tokenizer."""
    features = vocabulary.processors.get(WORDS)
    if features is None:
        return _by_tokenizer(vocabulary.tokenizer, cut)
    assert isinstance(features, WordFeatures)
    return _by_features(features, cut)


def _by_features(features: WordFeatures, cut: Truncation) -> Reader:
    hashed, no_types = hashed_words(features), np.zeros(0, np.int64)

    def read(words: Sequence[str]) -> Sentence:
        values = cut(hashed(words), ROLE).astype(np.int32)
        return Sentence(values, no_types, list(range(len(values))))

    return read


def pieces_of(tokenizer: Tokenizer) -> Pieces:
    """Return the encoder of a word: (word, True if a space precedes it) -> (ids, index of the first id of the word).

    Raises ``UserError`` for a word without tokens if the tokenizer has no unknown token.
    """

    @lru_cache(maxsize=1 << 16)
    def pieces(word: str, spaced: bool) -> tuple[list[int], int]:
        ids, spans = tokenizer.encode_offsets(f" {word}" if spaced else word)
        head = next((i for i, (begin, end) in enumerate(spans) if end > max(begin, spaced)), None)
        if head is not None:
            return ids, head
        if tokenizer.unknown_id is None:
            raise UserError(f"the tokenizer has neither a piece for the word {word!r} nor an unknown token")
        return [tokenizer.unknown_id], 0

    return pieces


def _by_tokenizer(tokenizer: Tokenizer, cut: Truncation) -> Reader:
    pieces, frame = pieces_of(tokenizer), tokenizer.frame

    def read(words: Sequence[str]) -> Sentence:
        ids: list[int] = []
        heads = []
        for i, word in enumerate(words):
            ids_of_word, head = pieces(word, i > 0)
            heads.append(len(ids) + head)
            ids += ids_of_word
        truncated = cut(ids, ROLE).tolist()
        framed = cut.framed(frame.around(truncated))
        places = [framed.begins[0] + head for head in heads if head < len(truncated)]
        return Sentence(np.array(framed.ids, np.int64), np.array(framed.types, np.int64), places)

    return read


def text_reader(vocabulary: Vocabulary, cut: Truncation) -> TextReader:
    """Return the encoder of a text that is not split into words.

    A tokenizer encodes the whole text, with single spaces between words as in training. Its own words are those of the
    sentence: pieces before BPE or WordPiece, which separate punctuation in most vocabularies, cut at white space.
    Without a tokenizer, white space separates words.
    """
    if vocabulary.processors.get(WORDS) is None:
        return _text_by_tokenizer(vocabulary.tokenizer, cut)
    read = reader(vocabulary, cut)

    def read_text(text: str) -> tuple[Sentence, list[Span]]:
        spans = [match.span() for match in _WORD.finditer(text)]
        return read([text[begin:end] for begin, end in spans]), spans

    return read_text


class TextTokens(NamedTuple):
    """Encoded text.

    sentence: its ids, and the first token of each word that is not truncated.   spans: offsets of each word.
    begin: position of the first token of the text in ``sentence``.   tokens: offsets of each token that is not
    truncated.   length: number of tokens without truncation.
    """

    sentence: Sentence
    spans: list[Span]
    begin: int
    tokens: list[Span]
    length: int


def _text_by_tokenizer(tokenizer: Tokenizer, cut: Truncation) -> TextReader:
    def read_text(text: str) -> tuple[Sentence, list[Span]]:
        read = tokens_of_text(tokenizer, cut, text)
        return read.sentence, read.spans

    return read_text


def tokens_of_text(tokenizer: Tokenizer, cut: Truncation, text: str) -> TextTokens:
    """Encode a text that is not split into words, as ``text_reader`` says."""
    parts = [match.span() for match in _WORD.finditer(text)]
    spaced = " ".join(text[begin:end] for begin, end in parts)
    ids, offsets, words = tokenizer.encode_words(spaced)
    heads, spans = _words_of_tokens(spaced, offsets, words)
    truncated = cut(ids, ROLE).tolist()
    framed = cut.framed(tokenizer.frame.around(truncated))
    places = [framed.begins[0] + head for head in heads if head < len(truncated)]
    sentence = Sentence(np.array(framed.ids, np.int64), np.array(framed.types, np.int64), places)
    stripped = [_stripped(spaced, span) for span in offsets[: len(truncated)]]
    return TextTokens(sentence, _moved(spans, parts), framed.begins[0], _moved(stripped, parts), len(ids))


def _stripped(text: str, span: Span) -> Span:
    """Return ``span`` without the white space around it."""
    piece = text[slice(*span)]
    begin = span[0] + len(piece) - len(piece.lstrip())
    return begin, begin + len(piece.strip())


def _moved(spans: Sequence[Span], parts: Sequence[Span]) -> list[Span]:
    """Convert ``spans`` in the text of the ``parts`` joined by single spaces to offsets in the text of the parts."""
    begins = np.cumsum([0, *(end - begin + 1 for begin, end in parts)])
    ranges = list[Span]()
    for begin, end in spans:
        part = int(np.searchsorted(begins, begin, side="right")) - 1
        shift = parts[part][0] - int(begins[part])
        ranges.append((begin + shift, end + shift))
    return ranges


def _words_of_tokens(text: str, offsets: Sequence[Span], words: Sequence[int | None]) -> tuple[list[int], list[Span]]:
    """Return (index of the first token of each word, span of each word) for the tokens of ``text``.

    A word begins at a token with another word number than the token before it, or after white space. Tokens of white
    space alone belong to no word.
    """
    heads, spans, last = list[int](), list[Span](), None
    for i, ((begin, end), word) in enumerate(zip(offsets, words, strict=True)):
        piece = text[begin:end]
        begin += len(piece) - len(piece.lstrip())
        if not piece.strip():
            continue
        if (spans and word == last and not text[spans[-1][1] : begin]) or (spans and begin < spans[-1][1]):
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            heads.append(i)
            spans.append((begin, begin + len(piece.strip())))
        last = word
    return heads, spans
