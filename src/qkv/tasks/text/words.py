"""Word boundaries in token sequences."""

from __future__ import annotations

import numpy as np

from qkv.tokenizers.tokenizer import Tokenizer


class WordNumbers:
    """Numbering of the words in rows of token ids, by the word boundaries of a tokenizer.

    A token continues the previous word if the previous token ends and this token begins with a letter or digit, with
    nothing between them. Every other token, such as a space or punctuation mark, begins a new word.
    """

    def __init__(self, tokenizer: Tokenizer):
        ends = [_ends(tokenizer, index) for index in range(tokenizer.vocab_size)]
        self._goes_on, self._open = (np.array(column, bool) for column in zip(*ends, strict=True))

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Number the words of each row from 0; return the word number of each token, (B, N) int64. ids (B, N)."""
        goes_on = np.zeros(ids.shape, bool)
        goes_on[:, 1:] = self._goes_on[ids[:, 1:]] & self._open[ids[:, :-1]]
        return np.cumsum(~goes_on, axis=1) - 1


def _ends(tokenizer: Tokenizer, index: int) -> tuple[bool, bool]:
    """Return (True if the token begins with a letter or digit, True if it ends with a letter or digit)."""
    if tokenizer.token_bytes is not None:
        piece = tokenizer.token_bytes[index]
        return _in_word(piece[:1]), _in_word(piece[-1:])
    alone, twice = tokenizer.decode([index]), tokenizer.decode([index, index])
    behind = twice[len(alone) :]  # decoding a token twice shows what is written between two tokens
    return behind[:1].isalnum(), alone[-1:].isalnum()


def _in_word(byte: bytes) -> bool:
    return byte.isalnum() or byte >= b"\x80"
