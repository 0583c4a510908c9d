"""Read the file of a SentencePiece model (Kudo and Richardson 2018): its pieces with scores, and how it reads texts.

The file is a message of Protocol Buffers, of which these fields are read:

    ModelProto       1 pieces   2 trainer   3 normalizer
    SentencePiece    1 text   2 score (fp32)   3 type: 1 normal, 2 unknown, 3 control, 4 given, 5 unused, 6 byte
    TrainerSpec      3 kind: 1 unigram, 2 BPE, 3 words, 4 characters
    NormalizerSpec   2 table of replaced characters   3 space before a text   4 spaces joined and stripped
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from qkv.system.errors import UserError

NORMAL, GIVEN = 1, 4
KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
"""Kind of a model by its number."""


class PieceModel(NamedTuple):
    """Contents of a SentencePiece model.

    scores: logarithm of the probability of each piece that texts are split into. kind: a value of ``KINDS``.
    characters: precompiled table of replaced characters. space_before: a text is read as after a space. joins_spaces:
    spaces in a row are read as one, and those around a text are left out.
    """

    scores: dict[str, float]
    kind: str
    characters: bytes
    space_before: bool
    joins_spaces: bool


def read_pieces(file: Path) -> PieceModel:
    """Read a SentencePiece model. Raises ``UserError`` if the file is missing or has another format."""
    try:
        whole = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None
    scores, kind, rules = dict[str, float](), 1, dict[int, bytes | int]()
    try:
        for number, value in _fields(whole):
            if number == 1:
                piece = dict(_fields(_bytes(value)))
                if piece.get(3, NORMAL) in (NORMAL, GIVEN):
                    scores[_bytes(piece[1]).decode()] = struct.unpack("<f", _bytes(piece.get(2, bytes(4))))[0]
            elif number == 2:
                kind = dict(_fields(_bytes(value))).get(3, 1)
            elif number == 3:
                rules = dict(_fields(_bytes(value)))
        if not scores:
            raise ValueError("it has no pieces")
        return PieceModel(
            scores, KINDS[int(kind)], _bytes(rules.get(2, b"")), rules.get(3, 1) == 1, rules.get(4, 1) == 1
        )
    except (ValueError, KeyError, IndexError, struct.error) as error:
        raise UserError(f"{file} is cut short or not a SentencePiece model ({error})") from None


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield (number, value) of the fields of a message: an integer, or bytes. Raises ``ValueError``, ``IndexError``."""
    place = 0
    while place < len(message):
        key, place = _integer(message, place)
        match key & 7:
            case 0:
                value, place = _integer(message, place)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, place = _integer(message, place)
            case 5:
                size = 4
            case form:
                raise ValueError(f"a field has the unknown form {form}")
        if place + size > len(message):
            raise ValueError("it ends inside of a field")
        yield key >> 3, message[place : place + size]
        place += size


def _integer(message: bytes, place: int) -> tuple[int, int]:
    """Read an integer in groups of seven bits, lowest first; return (integer, index behind it)."""
    value = shift = 0
    while True:
        byte = message[place]
        value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
        if byte < 128:
            return value, place


def _bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ValueError("a field that should be bytes is a number")
    return value
