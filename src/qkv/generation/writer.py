"""Streaming detokenization: tokens of one text are decoded to pieces of text while they are sampled."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.generation.stop import StopStrings
from qkv.tokenizers.stream import StreamDecoder
from qkv.tokenizers.tokenizer import Tokenizer

PROMPT_END = 16
"""Number of last prompt tokens that the stream decoder gets as context; must exceed the bytes of one character."""


class TextWriter:
    """Decoder of one row's token stream to text, up to a stop string."""

    def __init__(
        self, tokenizer: Tokenizer | None, prompt: Sequence[int], stop: Sequence[str] = (), min_tokens: int = 0
    ):
        """``prompt``: ids before the text, at least the last ``PROMPT_END`` of them, which the decoder reads first.

        ``tokenizer``: None for a model without one; all pieces are then empty. ``min_tokens``: number of first tokens
        whose text is not searched for stop strings.
        """
        self.decoder = None if tokenizer is None else StreamDecoder(tokenizer)
        self.stop, self._free = StopStrings(stop), min_tokens
        if self.decoder is not None:
            # Some decoders treat the first token of a text differently, and a new token is never the first.
            self.decoder.feed(prompt)

    def feed(self, token: int) -> str:
        """Add a token; return the text that is final now."""
        if self.decoder is None:
            return ""
        piece, self._free = self.decoder.feed([token]), self._free - 1
        return piece if self._free >= 0 else self.stop.feed(piece)

    def flush(self) -> str:
        """Return the text that is still held back when the tokens end."""
        return "" if self.decoder is None else self.stop.feed(self.decoder.flush()) + self.stop.flush()
