"""Deterministic vocabulary training with the tokenizers library, whose trainers iterate over hash tables in varying
order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers
from tokenizers import models, trainers

from qkv.tokenizers.byte_level import SYMBOLS
from qkv.tokenizers.waiting import interruptible

WORDPIECE_UNKNOWN = "[UNK]"


def word_counts(core: tokenizers.Tokenizer, texts: Iterable[str], vocab_size: int, min_frequency: int) -> list[str]:
    """Return the most frequent words of ``texts``, as split by ``core``, by descending frequency, ties by code
    point.
    """
    learner = trainers.WordLevelTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=[], show_progress=False
    )
    interruptible(lambda: core.train_from_iterator(texts, learner))
    vocab = core.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def wordpieces(core: tokenizers.Tokenizer, texts: Sequence[str], vocab_size: int) -> dict[str, int]:
    """Train a WordPiece vocabulary, piece -> id: unknown token, initial letters, "##" continuation letters, then merged
    pieces in order.

    Pieces are merged as in byte-pair encoding, most frequent pair first. Distinct letters take at most a quarter of the
    vocabulary. A first pass collects the letters. The second pass receives them in a fixed order, because the order of
    ids breaks ties between pairs.
    """
    letters = _frequent_letters(core, texts, limit=max(1, (vocab_size - 1) // 4))
    first = _merged(core, texts, 0, letters, [])
    begin, go_on = (
        sorted(piece for piece in first if len(piece) == 1),
        sorted(piece for piece in first if len(piece) > 1),
    )
    return _merged(core, texts, vocab_size, letters, [WORDPIECE_UNKNOWN, *begin, *go_on])


def _frequent_letters(core: tokenizers.Tokenizer, texts: Sequence[str], limit: int) -> list[str]:
    """Return the ``limit`` most frequent characters of the normalised texts, ties by code point."""
    raw = np.zeros(0x110000, np.int64)
    for text in texts:
        letters, counts = np.unique(np.frombuffer(text.encode("utf-32-le"), np.uint32), return_counts=True)
        raw[letters] += counts
    normal: dict[str, int] = {}
    for code in np.flatnonzero(raw):
        for letter in core.normalizer.normalize_str(chr(code)):
            if not letter.isspace():
                normal[letter] = normal.get(letter, 0) + int(raw[code])
    return sorted(normal, key=lambda letter: (-normal[letter], letter))[:limit]


def _merged(
    core: tokenizers.Tokenizer, texts: Iterable[str], vocab_size: int, letters: list[str], before: list[str]
) -> dict[str, int]:
    core.model = models.WordPiece(unk_token=WORDPIECE_UNKNOWN)
    learner = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        special_tokens=before,
        show_progress=False,
    )
    interruptible(lambda: core.train_from_iterator(texts, learner))
    return core.get_vocab(with_added_tokens=False)


def unigram_pieces(core: tokenizers.Tokenizer, texts: Iterable[str], vocab_size: int) -> list[tuple[str, float]]:
    """Train a Unigram vocabulary by expectation maximisation and pruning (Kudo 2018): (piece, log probability), most
    probable first, with all 256 bytes.

    The library gives unneeded bytes scores in steps of 1e-4 above the lowest score, in an order that varies; here they
    all get the lowest score. Scores are rounded to four decimals, since their last bits differ between trainings.
    """
    learner = trainers.UnigramTrainer(
        vocab_size=vocab_size, initial_alphabet=sorted(SYMBOLS), special_tokens=[], show_progress=False
    )
    interruptible(lambda: core.train_from_iterator(texts, learner))
    # Without text there are no scores.
    pieces = [(piece, score or 0.0) for piece, score in json.loads(core.to_str())["model"]["vocab"]]
    lowest = min(score for _, score in pieces)
    shared = lowest + 1e-4 * len(SYMBOLS)
    rounded = [(piece, round(lowest if len(piece) == 1 and score < shared else score, 4)) for piece, score in pieces]
    return sorted(rounded, key=lambda pair: (-pair[1], pair[0]))
