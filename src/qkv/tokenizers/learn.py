"""Vocabularies learned by the library, made equal for equal texts: its trainers walk through hash tables, whose order changes."""

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
    """The words that ``core`` cuts ``texts`` into, by frequency, ties in the order of code points."""
    learner = trainers.WordLevelTrainer(vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=[], show_progress=False)
    interruptible(lambda: core.train_from_iterator(texts, learner))
    vocab = core.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def wordpieces(core: tokenizers.Tokenizer, texts: Sequence[str], vocab_size: int) -> dict[str, int]:
    """Piece -> id: the unknown token, letters that begin a word, "##" letters that go on with one, then what was merged, in order.

    Pieces are merged as in byte-pair encoding, the most frequent pair first. At most a quarter of the vocabulary are distinct letters.
    The letters are learned first and given in order to the second pass, where the order of ids decides between equal pairs.
    """
    letters = _frequent_letters(core, texts, limit=max(1, (vocab_size - 1) // 4))
    first = _merged(core, texts, 0, letters, [])
    begin, go_on = sorted(piece for piece in first if len(piece) == 1), sorted(piece for piece in first if len(piece) > 1)
    return _merged(core, texts, vocab_size, letters, [WORDPIECE_UNKNOWN, *begin, *go_on])


def _frequent_letters(core: tokenizers.Tokenizer, texts: Sequence[str], limit: int) -> list[str]:
    """The most frequent characters of the normalised texts, ties in the order of code points."""
    raw = np.zeros(0x110000, np.int64)
    for text in texts:
        found, counts = np.unique(np.frombuffer(text.encode("utf-32-le"), np.uint32), return_counts=True)
        raw[found] += counts
    normal: dict[str, int] = {}
    for code in np.flatnonzero(raw):
        for letter in core.normalizer.normalize_str(chr(code)):
            if not letter.isspace():
                normal[letter] = normal.get(letter, 0) + int(raw[code])
    return sorted(normal, key=lambda letter: (-normal[letter], letter))[:limit]


def _merged(core: tokenizers.Tokenizer, texts: Iterable[str], vocab_size: int, letters: list[str], before: list[str]) -> dict[str, int]:
    core.model = models.WordPiece(unk_token=WORDPIECE_UNKNOWN)
    learner = trainers.WordPieceTrainer(
        vocab_size=vocab_size, initial_alphabet=letters, limit_alphabet=len(letters), special_tokens=before, show_progress=False
    )
    interruptible(lambda: core.train_from_iterator(texts, learner))
    return core.get_vocab(with_added_tokens=False)


def unigram_pieces(core: tokenizers.Tokenizer, texts: Iterable[str], vocab_size: int) -> list[tuple[str, float]]:
    """Piece and log probability by expectation maximisation and pruning (Kudo 2018), the most probable first; all 256 bytes are in.

    The bytes that the model can do without get steps of 1e-4 above the lowest score in no fixed order; here they share that score.
    Sums differ in their last bits from one training to the next; four decimals do not.
    """
    learner = trainers.UnigramTrainer(vocab_size=vocab_size, initial_alphabet=sorted(SYMBOLS), special_tokens=[], show_progress=False)
    interruptible(lambda: core.train_from_iterator(texts, learner))
    # Without a text there are no scores.
    found = [(piece, score or 0.0) for piece, score in json.loads(core.to_str())["model"]["vocab"]]
    lowest = min(score for _, score in found)
    shared = lowest + 1e-4 * len(SYMBOLS)
    rounded = [(piece, round(lowest if len(piece) == 1 and score < shared else score, 4)) for piece, score in found]
    return sorted(rounded, key=lambda pair: (-pair[1], pair[0]))
