"""Word boundaries in token sequences."""

from __future__ import annotations

import numpy as np

from qkv.tokenizers.tokenizer import Tokenizer


class WordNumbers:
    """Word boundaries of a tokenizer: numbers the words in rows of token ids.

    A token continues the previous word if it begins, and the previous token ends, with a letter or digit, with
    nothing between them. Each other token, such as a space or punctuation mark, is a word of its own.
    """

    def __init__(self, tokenizer: Tokenizer):
        ends = [_ends(tokenizer, index) for index in range(tokenizer.vocab_size)]
        self._goes_on, self._open = (np.array(column, bool) for column in zip(*ends, strict=True))

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Word number of each token in its row, from 0: (B, N) int64. ids (B, N)."""
        goes_on = np.zeros(ids.shape, bool)
        goes_on[:, 1:] = self._goes_on[ids[:, 1:]] & self._open[ids[:, :-1]]
        return np.cumsum(~goes_on, axis=1) - 1


def _ends(tokenizer: Tokenizer, index: int) -> tuple[bool, bool]:
    """(True if the token begins inside a word, True if it ends inside one), that is, with a letter or digit."""
    if tokenizer.token_bytes is not None:
        piece = tokenizer.token_bytes[index]
        return _in_word(piece[:1]), _in_word(piece[-1:])
    alone, twice = tokenizer.decode([index]), tokenizer.decode([index, index])
    behind = twice[len(alone) :]  # decoding a token twice shows what is written between two tokens
    return behind[:1].isalnum(), alone[-1:].isalnum()


def _in_word(byte: bytes) -> bool:
    return byte.isalnum() or byte >= b"\x80"
