"""Makes the tokenizer that a spec describes. One entry a kind: a new scheme is a spec and a function with ``@trains`` above it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from qkv.spec import tokenizers as spec
from qkv.spec.errors import UserError
from qkv.tokenizers.byte_level import SYMBOLS
from qkv.tokenizers.coders import BYTE_WORDS, CHARACTERS, WHOLE_BYTES, WORDS
from qkv.tokenizers.tokenizer import Tokenizer, well_formed

UNKNOWN = "<unk>"
"""Longer than any character or punctuation mark and not a word, so that no text contains it as a token."""


class Trainer(NamedTuple):
    """How one kind of tokenizer is made. ``sample``: characters of text that are enough, None for all of it, 0 for none."""

    make: Callable[[Any, Iterable[str]], Tokenizer]
    sample: int | None


TRAINERS: dict[type[spec.Tokenizer], Trainer] = {}
Make = TypeVar("Make", bound=Callable[[Any, Iterable[str]], Tokenizer])


def trains(kind: type[spec.Tokenizer], sample: int | None) -> Callable[[Make], Make]:
    """Register the function below as the trainer of ``kind``."""

    def register(make: Make) -> Make:
        TRAINERS[kind] = Trainer(make, sample)
        return make

    return register


def train(spec: spec.Tokenizer, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer of ``spec`` for ``texts``, each of which stands alone and is read once, in order. Equal texts give equal tokenizers."""
    return trainer_of(spec).make(spec, texts)


def trainer_of(spec: spec.Tokenizer) -> Trainer:
    """Raises ``UserError`` for a kind that nobody registered."""
    if type(spec) not in TRAINERS:
        raise UserError(f"the tokenizer {spec.kind!r} has no trainer; register one with qkv.tokenizers.train.trains")
    return TRAINERS[type(spec)]


@trains(spec.Characters, sample=None)
def characters(_spec: spec.Characters, texts: Iterable[str]) -> Tokenizer:
    """Ids in the order of code points, then the unknown token."""
    seen = np.zeros(0x110000, bool)
    for text in _joined(texts):
        seen[np.frombuffer(well_formed(text).encode("utf-32-le"), np.uint32)] = True
    return _word_level([chr(code) for code in np.flatnonzero(seen)], CHARACTERS)


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """Short texts put together, so that numpy has enough to do at once."""
    some: list[str] = []
    length = 0
    for text in texts:
        some.append(text)
        length += len(text)
        if length > 1 << 16:
            yield "".join(some)
            some, length = [], 0
    yield "".join(some)


@trains(spec.Bytes, sample=0)
def whole_bytes(_spec: spec.Bytes, _texts: Iterable[str]) -> Tokenizer:
    """The id of a byte is its value."""
    model = models.BPE(vocab={symbol: byte for byte, symbol in enumerate(SYMBOLS)}, merges=[])
    return Tokenizer(_assembled(model, WHOLE_BYTES, decoders.ByteLevel()))


@trains(spec.Words, sample=1 << 25)
def words(spec: spec.Words, texts: Iterable[str]) -> Tokenizer:
    """Ids by frequency, ties in the order of code points, then the unknown token."""
    core = _assembled(models.WordLevel({}, unk_token=UNKNOWN), WORDS, decoders.Fuse())
    learner = trainers.WordLevelTrainer(vocab_size=spec.vocab_size - 1, special_tokens=[], show_progress=False)
    core.train_from_iterator(map(well_formed, texts), learner)
    vocab = core.get_vocab()
    return _word_level(sorted(vocab, key=vocab.__getitem__), WORDS)


@trains(spec.BPE, sample=1 << 25)
def bpe(spec: spec.BPE, texts: Iterable[str]) -> Tokenizer:
    """GPT-2's byte-level scheme; all 256 bytes are in the vocabulary whatever the text is."""
    core = _assembled(models.BPE(), BYTE_WORDS, decoders.ByteLevel())
    learner = trainers.BpeTrainer(vocab_size=spec.vocab_size, initial_alphabet=sorted(SYMBOLS), special_tokens=[], show_progress=False)
    core.train_from_iterator(map(well_formed, texts), learner)
    return Tokenizer(core)


@trains(spec.TokenizerFile, sample=0)
def file(spec: spec.TokenizerFile, _texts: Iterable[str]) -> Tokenizer:
    """As it is in the file."""
    return Tokenizer.load(spec.path)


def _word_level(tokens: list[str], scheme: dict[str, Any]) -> Tokenizer:
    vocab = {token: index for index, token in enumerate([*tokens, UNKNOWN])}
    return Tokenizer(_assembled(models.WordLevel(vocab, unk_token=UNKNOWN), scheme, decoders.Fuse()))


def _assembled(model: models.Model, scheme: dict[str, Any], decoder: decoders.Decoder) -> tokenizers.Tokenizer:
    core = tokenizers.Tokenizer(model)
    if scheme["type"] == "Split":
        core.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(scheme["pattern"]["Regex"]), scheme["behavior"].lower())
    else:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=scheme["use_regex"])
    core.decoder = decoder
    return core
