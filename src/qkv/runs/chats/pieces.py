"""Text of single tokens, to show where a tokenizer splits."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable

from qkv.tokenizers.special import special_ids
from qkv.tokenizers.tokenizer import Tokenizer

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
"""Character for a space in vocabularies of SentencePiece."""


def pieces(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """Return the text of each token. A character of several tokens is the text of the last one; the others have their
    bytes in hexadecimal, such as \\xf0\\x9f. An id without a token is [id 7].
    """
    names = {index: content for content, index in special_ids(tokenizer.core).items()}
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = list[str]()
    for index in ids:
        if index in names:
            decoder.reset()
            texts.append(names[index])
            continue
        content = _bytes(tokenizer, index)
        text = decoder.decode(content)
        texts.append(text or "".join(f"\\x{byte:02x}" for byte in content) or f"[id {index}]")
    return texts


def _bytes(tokenizer: Tokenizer, index: int) -> bytes:
    """Return the bytes that a token adds to a text; empty for an id without a token."""
    if tokenizer.token_bytes is not None:
        return tokenizer.token_bytes[index] if index < tokenizer.vocab_size else b""
    content = tokenizer.core.id_to_token(index) or ""
    byte = _BYTE.fullmatch(content)
    return bytes.fromhex(byte[1]) if byte else content.replace(_SPACE, " ").encode("utf-8", "replace")
