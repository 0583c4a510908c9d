"""Map tokens to bytes, so that decoding is exact and can be streamed."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models


def _symbols() -> list[str]:
    """Return the characters that stand for the bytes 0 to 255 in a byte-level vocabulary (GPT-2 2019); all are
    printable.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    codes = iter(range(256, 512))
    return [chr(byte if byte in printable else next(codes)) for byte in range(256)]


SYMBOLS = _symbols()
_BYTE_OF = {symbol: byte for byte, symbol in enumerate(SYMBOLS)}


def token_bytes(core: tokenizers.Tokenizer) -> list[bytes] | None:
    """Return the bytes that each token id decodes to, as a list indexed by id.

    None if the text of a token depends on its neighbours (WordPiece, SentencePiece).
    """
    if isinstance(core.decoder, decoders.ByteLevel):
        spell = _from_symbols
    elif isinstance(core.decoder, decoders.Fuse) and isinstance(core.model, models.WordLevel):
        spell = str.encode
    else:
        return None
    vocab = core.get_vocab(with_added_tokens=True)
    table = [b""] * (1 + max(vocab.values(), default=-1))
    for token, index in vocab.items():
        table[index] = spell(token)
    return table


def _from_symbols(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF[symbol] for symbol in token)
    except KeyError:  # an added token is plain text
        return token.encode()
