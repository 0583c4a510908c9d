"""Incremental decoding of ids to text."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from tokenizers.decoders import DecodeStream

from qkv.tokenizers.tokenizer import Tokenizer


class StreamDecoder:
    """Incremental decoder from ids to text, for streaming. The concatenated results of ``feed`` and ``flush`` equal
    ``tokenizer.decode`` of all ids.

    A byte-level token may end within a character; the bytes of an incomplete character are held back until it is
    complete.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._neighbours = DecodeStream(skip_special_tokens=False)
        self._ids: list[int] = []
        self._given = ""

    def feed(self, ids: Iterable[int]) -> str:
        """Decode further ``ids``; return the text that they complete, possibly "". Raises ``UserError`` for a
        negative id.
        """
        new = self._tokenizer.checked(ids)
        table = self._tokenizer.token_bytes
        if table is not None:
            return self._utf8.decode(b"".join(map(table.__getitem__, new)))
        self._ids += new
        text = "".join(filter(None, (self._neighbours.step(self._tokenizer.core, index) for index in new)))
        self._given += text
        return text

    def flush(self) -> str:
        """Return the text held back so far, with an incomplete character as U+FFFD, and reset the decoder."""
        if self._tokenizer.token_bytes is not None:
            return self._utf8.decode(b"", final=True)
        rest = self._tokenizer.decode(self._ids).removeprefix(self._given)
        self._neighbours, self._ids, self._given = DecodeStream(skip_special_tokens=False), [], ""
        return rest
