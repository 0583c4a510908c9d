"""Which tokens make a word together."""

from __future__ import annotations

import numpy as np

from qkv.tokenizers.tokenizer import Tokenizer


class Words:
    """Numbers the words of rows of ids.

    A token goes on with the word before it if it begins, and that one ends, with a letter or a digit and nothing is written between
    them. Whatever else there is, spaces and punctuation marks, is a word of its own.
    """

    def __init__(self, tokenizer: Tokenizer):
        ends = [_ends(tokenizer, index) for index in range(tokenizer.vocab_size)]
        self._goes_on, self._open = (np.array(column, bool) for column in zip(*ends, strict=True))

    def of(self, ids: np.ndarray) -> np.ndarray:
        """(B, N) int64: the number of each token's word in its row, from 0. ids (B, N)."""
        goes_on = np.zeros(ids.shape, bool)
        goes_on[:, 1:] = self._goes_on[ids[:, 1:]] & self._open[ids[:, :-1]]
        return np.cumsum(~goes_on, axis=1) - 1


def _ends(tokenizer: Tokenizer, index: int) -> tuple[bool, bool]:
    """Whether a token goes on with an open word before it, and leaves one open behind it."""
    if tokenizer.token_bytes is not None:
        piece = tokenizer.token_bytes[index]
        return _in_word(piece[:1]), _in_word(piece[-1:])
    alone, twice = tokenizer.decode([index]), tokenizer.decode([index, index])
    behind = twice[len(alone) :]  # what stands between two tokens is seen where one follows itself
    return behind[:1].isalnum(), alone[-1:].isalnum()


def _in_word(byte: bytes) -> bool:
    return byte.isalnum() or byte >= b"\x80"
