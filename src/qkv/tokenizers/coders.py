"""Fast encoding of text to arrays of ids with numpy. Every coder returns exactly the ids of the tokenizers library.

A coder also knows its **borders**: positions at which a text can be split so that encoding the parts and concatenating
their ids gives the ids of the whole text.
"""

from __future__ import annotations

import json
import re
import string
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tokenizers
from tokenizers import models

from qkv.system.errors import UserError
from qkv.tokenizers.byte_level import SYMBOLS
from qkv.tokenizers.special import special_ids

# Unicode's White_Space, as matched by the library's \s; Python's \s also matches U+001C to U+001F.
SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"

# Pre-tokenizers, as serialised by the library.
CHARACTERS = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
WORDS = {"type": "Split", "pattern": {"Regex": r"\w+|\s+|[^\w\s]"}, "behavior": "Isolated", "invert": False}
WORD_LIST = {"type": "Split", "pattern": {"Regex": r"\w+|[^\w\s]"}, "behavior": "Removed", "invert": True}
WHOLE_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
BYTE_WORDS = {**WHOLE_BYTES, "use_regex": True}
_CODE_WORDS = r"\p{N}|(?:(?<!\s) )?(?:[\p{L}\p{M}_]+|[^\s\p{L}\p{M}\p{N}_]+)|\s+"
CODE = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": _CODE_WORDS}, "behavior": "Isolated", "invert": False},
        WHOLE_BYTES,
    ],
}
BERT_WORDS = {"type": "BertPreTokenizer"}

# Normalizers.
LOWERCASE = {"type": "Lowercase"}
CAPITALS = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Replace", "pattern": {"String": a}, "content": a.upper()} for a in string.ascii_lowercase
    ],
}
BERT_CLEANING = [
    {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": lowercase,
    }
    for lowercase in (False, True)
]


class Units(NamedTuple):
    """Two regular expressions that split a text. ``pattern`` matches a unit: a substring, such as a word, whose ids do
    not depend on its context. ``borders`` matches the position between two units.
    """

    pattern: re.Pattern[str]
    borders: re.Pattern[str]


def _runs(space: str) -> Units:
    """Return the two expressions for a tokenizer whose units are runs of the characters ``space`` and runs of other
    characters.
    """
    return Units(
        re.compile(f"[{space}]+|[^{space}]+"), re.compile(f"(?<=[^{space}])(?=[{space}])|(?<=[{space}])(?=[^{space}])")
    )


# Byte-level words (GPT-2's pattern): a space is attached to the following word; of a longer run of spaces, only the
# last space is.
BYTE_WORD_UNITS = Units(
    re.compile(f"[{SPACE}]?[^{SPACE}]+|[{SPACE}]+(?![^{SPACE}])"), re.compile(f"(?=[{SPACE}][^{SPACE}])")
)
# Code: a single space is attached to the following token; longer runs of spaces are separate.
CODE_UNITS = Units(
    re.compile(f"(?:(?<![{SPACE}]) )?[^{SPACE}]+|[{SPACE}]+"),
    re.compile(f"(?<=[^{SPACE}])(?=[{SPACE}])"),
)
# BERT removes three of the spaces as control characters before splitting at spaces.
BERT_SPACE = r"\t\n\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"

UNITS: list[tuple[type, list[Any], Mapping[str, object], Units]] = [
    (models.WordLevel, [None, LOWERCASE], WORDS, _runs(SPACE)),
    (models.WordLevel, [None, LOWERCASE], WORD_LIST, _runs(SPACE)),
    (models.BPE, [None], BYTE_WORDS, BYTE_WORD_UNITS),
    (models.BPE, [None], CODE, CODE_UNITS),
    (models.Unigram, [None], BYTE_WORDS, BYTE_WORD_UNITS),
    (models.WordPiece, [*BERT_CLEANING], BERT_WORDS, _runs(BERT_SPACE)),
]
"""(model, normalizers, pre-tokenizer, units) of the tokenizers that ``UnitCoder`` can encode."""


class SpaceBorders:
    """Mixin that finds, with a regular expression, the positions at which a text can be split for encoding; default:
    between byte-level words.
    """

    piece_size = 1 << 17

    def __init__(self, borders: re.Pattern[str] = BYTE_WORD_UNITS.borders):
        self._borders = borders

    def border(self, text: str) -> int:
        """Return the last index at which ``text`` can be split without changing the concatenated ids; 0 if there is
        none.
        """
        for begin in (max(0, len(text) - 1024), 0):  # usually found near the end
            places = [match.start() for match in self._borders.finditer(text, begin + 1)]
            if places:
                return places[-1]
        return 0


class Coder(Protocol):
    """Interface of a fast encoder from text to ids, with the same ids as the tokenizers library."""

    piece_size: int
    """Preferred number of characters to encode at once."""

    def encode_many(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return (concatenated ids of all ``texts``, number of ids per text). Texts must not contain lone
        surrogates.
        """
        ...

    def border(self, text: str) -> int:
        """Return the last index at which ``text`` can be split without changing the concatenated ids; 0 if there is
        none.
        """
        ...


def coder_for(core: tokenizers.Tokenizer, dtype: np.dtype) -> Coder:
    """Return the fastest encoder that gives exactly the ids of the library's tokenizer ``core``, as arrays of
    ``dtype``.
    """
    model, normalizer, cutter = core.model, _written(core.normalizer), _written(core.pre_tokenizer)
    if not _only_specials(core):  # an added token that is not special may contain a space
        return PlainCoder(core, dtype)
    if (
        isinstance(model, models.WordLevel)
        and cutter == CHARACTERS
        and normalizer in (None, CAPITALS)
        and model.unk_token in _own_vocab(core)
    ):
        return CharacterCoder(core, dtype)
    if isinstance(model, models.BPE) and not normalizer and cutter == WHOLE_BYTES and _only_bytes(core):
        return ByteCoder([_own_vocab(core)[symbol] for symbol in SYMBOLS], dtype)
    if not _random(model):
        for kind, normalizers, cut, units in UNITS:
            if isinstance(model, kind) and normalizer in normalizers and cutter == cut:
                return UnitCoder(core, dtype, *units)
    return PlainCoder(core, dtype)


def _random(model: models.Model) -> bool:
    """Return True if encoding is random (BPE dropout, or sampling from a Unigram model)."""
    return bool(getattr(model, "dropout", None) or getattr(model, "alpha", None) or getattr(model, "nbest_size", None))


def _only_bytes(core: tokenizers.Tokenizer) -> bool:
    """Return True if the vocabulary has only the 256 bytes and special tokens, so that every text is encoded as its
    bytes.
    """
    vocabulary = _own_vocab(core)
    rest = vocabulary.keys() - set(SYMBOLS)
    return len(vocabulary) - len(rest) == len(SYMBOLS) and (
        not rest or (rest <= special_ids(core).keys() and not _merges(core))
    )


def _merges(core: tokenizers.Tokenizer) -> list[Any]:
    return json.loads(core.to_str())["model"]["merges"]


def _own_vocab(core: tokenizers.Tokenizer) -> dict[str, int]:
    """Return the vocabulary (token -> id) of the library's model without special tokens, which never occur in texts."""
    return core.get_vocab(with_added_tokens=False)


def _written(part: Any) -> dict[str, object] | None:
    """Return the settings of a component of the library's tokenizer (normalizer, pre-tokenizer) as plain data; None if
    the tokenizer lacks the component.
    """
    return None if part is None else json.loads(part.__getstate__())


def _only_specials(core: tokenizers.Tokenizer) -> bool:
    return core.encode_special_tokens and all(token.special for token in core.get_added_tokens_decoder().values())


class CharacterCoder:
    """Encoder of character vocabularies: one table look-up per character."""

    piece_size = 1 << 18

    def __init__(self, core: tokenizers.Tokenizer, dtype: np.dtype):
        vocab = _own_vocab(core)
        codes = {ord(token): index for token, index in vocab.items() if len(token) == 1}
        if core.normalizer is not None:  # the normalizer converts lower-case letters to upper case
            codes |= {
                ord(letter): codes.get(ord(letter.upper()), vocab[core.model.unk_token])
                for letter in string.ascii_lowercase
            }
        self._table = np.full(max(codes, default=0) + 2, vocab[core.model.unk_token], dtype)
        for code, index in codes.items():
            self._table[code] = index

    def encode_many(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
        # The last entry of the table, after the largest code point of the vocabulary, is the id of the unknown token.
        return self._table.take(codes, mode="clip"), np.fromiter(map(len, texts), np.int64, len(texts))

    def border(self, text: str) -> int:
        return len(text)


class ByteCoder:
    """Encoder of byte vocabularies: one table look-up per UTF-8 byte."""

    piece_size = 1 << 18

    def __init__(self, ids: Sequence[int], dtype: np.dtype):
        self._table = np.array(ids, dtype)

    def encode_many(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        parts = [text.encode() for text in texts]
        ids = self._table.take(np.frombuffer(b"".join(parts), np.uint8))
        return ids, np.fromiter(map(len, parts), np.int64, len(parts))

    def border(self, text: str) -> int:
        return len(text)


class UnitCoder(SpaceBorders):
    """Encoder that caches the library's ids of each distinct unit (word).

    Words repeat in natural text, so most units are encoded by a table look-up.
    """

    most_remembered = 1 << 20

    def __init__(self, core: tokenizers.Tokenizer, dtype: np.dtype, units: re.Pattern[str], borders: re.Pattern[str]):
        super().__init__(borders)
        self._core, self._units, self._dtype = core, units, dtype
        self._learning = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._index: dict[str, int] = {}
        self._lengths = self._starts = np.zeros(0, np.int64)
        self._ids = np.zeros(0, self._dtype)

    def encode_many(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        text_units = [self._units.findall(text) for text in texts]
        units = text_units[0] if len(text_units) == 1 else [unit for some in text_units for unit in some]
        with self._learning:
            self._learn(units)
            rows = np.fromiter(map(self._index.__getitem__, units), np.int64, len(units))
            ids, starts, lengths = self._ids, self._starts[rows], self._lengths[rows]
        ends = np.concatenate(([0], np.cumsum(lengths)))
        # Position j of the result has the offset j - ends[k] in unit k, whose ids begin at starts[k].
        source = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)
        last = np.cumsum(np.fromiter(map(len, text_units), np.int64, len(text_units)))
        return ids[source], np.diff(ends[last], prepend=0)

    def _learn(self, units: list[str]) -> None:
        if len(self._ids) > self.most_remembered:
            self._forget()
        new = [unit for unit in dict.fromkeys(units) if unit not in self._index]
        if not new:
            return
        ids, lengths = _library_ids(self._core, new, self._dtype)
        self._index.update(zip(new, range(len(self._index), len(self._index) + len(new)), strict=True))
        self._ids = np.concatenate((self._ids, ids))
        self._lengths = np.concatenate((self._lengths, lengths))
        self._starts = np.cumsum(self._lengths) - self._lengths


class PlainCoder:
    """Encoder for all other vocabularies, which calls the library.

    Long texts are split after line breaks; the ids at such a split may differ from those of the unsplit text.
    """

    piece_size = 1 << 14

    def __init__(self, core: tokenizers.Tokenizer, dtype: np.dtype):
        self._core, self._dtype = core, dtype

    def encode_many(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return _library_ids(self._core, texts, self._dtype)

    def border(self, text: str) -> int:
        return text.rfind("\n") + 1


def _library_ids(core: tokenizers.Tokenizer, texts: Sequence[str], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    try:
        encoded = [encoding.ids for encoding in core.encode_batch_fast(list(texts), add_special_tokens=False)]
    except Exception as error:  # the library raises nothing more precise
        raise UserError(f"the tokenizer cannot encode this text: {error}") from None
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return np.fromiter((index for ids in encoded for index in ids), dtype, int(lengths.sum())), lengths
