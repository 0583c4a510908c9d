"""Text from files and standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from qkv.system.errors import UserError


def text_of_file(path: Path, option: str = "") -> str:
    """Read a UTF-8 file. ``option``: the command-line option that names the file, for error messages.

    Raises ``UserError`` if the file cannot be read or is not UTF-8.
    """
    named = f"{option}: {str(path)!r}" if option else str(path)
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UserError(f"{named} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise _not_utf8(named, error) from None


def text_of_input(named: str = "standard input") -> str:
    """Read all of standard input, called ``named`` in error messages. Raises ``UserError`` if it is not UTF-8."""
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(named, error) from None


def lines_of_input() -> list[str]:
    """Read the non-empty lines of standard input. Raises ``UserError`` if it is not UTF-8."""
    return [line for line in text_of_input().splitlines() if line.strip()]


def _not_utf8(named: str, error: UnicodeDecodeError) -> UserError:
    return UserError(f"{named} is not UTF-8: byte {error.object[error.start]:#04x} at position {error.start}")
