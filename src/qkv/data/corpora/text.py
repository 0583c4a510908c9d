"""Text of any size, read in blocks: from a file, gzipped or not, or from memory."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from qkv.data.reading import SourceReading, current, fact, identity_of
from qkv.system.errors import UserError

BLOCK = 1 << 18
"""Block size in bytes."""
_LOOKED_AT = 1 << 10
"""Number of bytes at the beginning of a file that are examined to recognise its encoding."""


class TextSource:
    """UTF-8 text that is read in blocks; a file in UTF-16 is converted.

    ``name``: used in error messages; ``open_bytes``: opens the unpacked bytes from the beginning. Line endings are
    kept; a leading byte order mark is dropped.
    """

    def __init__(self, name: str, open_bytes: Callable[[], BinaryIO], path: Path | None = None):
        self.name = name
        self._open, self._path = open_bytes, path

    @classmethod
    def of_file(cls, path: Path, name: str = "") -> TextSource:
        """Return the text of a file, decompressed if its first two bytes are those of gzip."""
        reading = current()
        return cls(name or str(path), lambda: _opened(path, reading), path)

    @classmethod
    def of_string(cls, text: str, name: str) -> TextSource:
        """Return the text of a string in memory."""
        return cls(name, lambda: io.BytesIO(text.encode()))

    def raw(self) -> Iterator[bytes]:
        """Yield the unpacked bytes of the text, in blocks. Raises ``UserError`` if the file cannot be read."""
        with self._readable(), self._open() as file:
            while block := file.read(BLOCK):
                yield block

    def digest(self) -> str:
        """Return the SHA-256 of the unpacked bytes, in hexadecimal."""
        return self._measured()[0]

    def characters(self) -> int:
        """Return the number of characters. Raises ``UserError`` for bytes that are not UTF-8."""
        count = self._measured()[1]
        return sum(map(len, self.blocks())) if count is None else count  # reading the blocks raises the error

    def _measured(self) -> tuple[str, int | None]:
        """Compute (SHA-256 of the unpacked bytes, number of characters or None if they are not UTF-8) in one pass."""
        if self._path is None:
            return _measured(self.raw())
        return fact(("measured", identity_of(self._path)), lambda: _measured(self.raw()))

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """Yield the characters ``start`` to ``stop`` (None: to the end), in blocks.

        Raises ``UserError`` for invalid UTF-8, with its byte and line.
        """
        position = 0
        for block in self._decoded():
            begin, position = position, position + len(block)
            if position > start and (
                part := block[max(0, start - begin) : None if stop is None else max(0, stop - begin)]
            ):
                yield part
            if stop is not None and position >= stop:
                return

    def _decoded(self) -> Iterator[str]:
        offset, rest = 0, b""
        for block in itertools.chain(self.raw(), (b"",)):
            data = rest + block
            try:
                text, used = codecs.utf_8_decode(data, "strict", not block)
            except UnicodeDecodeError as error:
                raise UserError(self._not_utf8(offset + error.start, data[error.start], error.reason)) from None
            yield text.removeprefix("\ufeff") if not offset else text
            offset, rest = offset + used, data[used:]

    def _not_utf8(self, at: int, byte: int, reason: str) -> str:
        line = 1 + sum(part.count(b"\n") for part in _first(self.raw(), at))
        return (
            f"{self.name} is not UTF-8 text: byte 0x{byte:02x} at offset {at} (line {line}): {reason}; "
            "convert the file to UTF-8"
        )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise UserError(f"{self.name} is a damaged gzip file: {error}") from None
        except UnicodeDecodeError as error:
            raise UserError(f"{self.name} is not UTF-16 text: {error.reason} at byte {error.start}") from None
        except OSError as error:
            raise UserError(f"{self.name} cannot be read: {error.strerror or error}") from None


def _measured(blocks: Iterable[bytes]) -> tuple[str, int | None]:
    digest, decoder = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")()
    count: int | None = 0
    for block in itertools.chain(blocks, (b"",)):
        digest.update(block)
        if count is not None:
            try:
                text = decoder.decode(block, not block)
            except UnicodeDecodeError:
                count = None
            else:
                count += len(text) - (count == 0 and text.startswith("\ufeff"))
    return digest.hexdigest(), count


def _opened(path: Path, reading: SourceReading | None) -> BinaryIO:
    """Open the unpacked bytes of a file, from memory if ``reading`` holds them."""
    content = None if reading is None else reading.content(path, _unpacked)
    return _unpacked(path) if content is None else io.BytesIO(content)


def _unpacked(path: Path) -> BinaryIO:
    file: Any = path.open("rb")
    try:
        if file.peek(2)[:2] == b"\x1f\x8b":
            packed, file = file, gzip.GzipFile(fileobj=file)
            file.myfileobj = packed  # closed together
        encoding = _utf16(file.peek(_LOOKED_AT)[:_LOOKED_AT])
    except BaseException:
        file.close()
        raise
    return file if encoding is None else codecs.EncodedFile(file, "utf-8", encoding)  # type: ignore[return-value]


def _utf16(beginning: bytes) -> str | None:
    """Recognise a text in UTF-16, as spreadsheets save it: by its byte order mark, or by the zero bytes of Latin
    letters.

    Returns the encoding, or None for any other text.
    """
    if beginning[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    zeros = [beginning[i::2].count(0) for i in range(2)]
    if 4 * max(zeros) > len(beginning) and 10 * min(zeros) <= max(zeros) and len(beginning) % 2 == 0:
        return "utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"
    return None


def _first(blocks: Iterator[bytes], count: int) -> Iterator[bytes]:
    for block in blocks:
        yield block[:count]
        count -= len(block)
        if count <= 0:
            return
