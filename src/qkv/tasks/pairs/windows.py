"""Windows of a long text: it is split where a sentence ends, else between words, else between characters."""

from __future__ import annotations

import re
from collections.abc import Callable

_SENTENCE = r""".+?(?:[.!?…]["'”’)\]]*\s+|[。！？]\s*|\n\s*\n\s*|\Z)"""
_PIECES = tuple(re.compile(pattern, re.DOTALL) for pattern in (_SENTENCE, r"\S+\s*|\s+", r"."))
"""Sentences, words and characters, each with the white space behind it."""


def split_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Split ``text`` into windows in order, each as long as ``fits`` allows; at least one.

    A window ends where a sentence ends. Only a sentence that does not fit is split between words, and only such a word
    between characters. White space around a window is removed.
    """
    windows = [window.strip() for window in _windows(text, fits, 0)]
    return [window for window in windows if window] or [text.strip()]


def _windows(text: str, fits: Callable[[str], bool], level: int) -> list[str]:
    """Join the pieces of ``text``, those of the index ``level`` in ``_PIECES``, to windows."""
    windows, window = list[str](), ""
    for piece in _PIECES[level].findall(text):
        if window and not fits((window + piece).strip()):
            windows.append(window)
            window = ""
        if window or level == len(_PIECES) - 1 or fits(piece.strip()):
            window += piece
        else:
            *full, window = _windows(piece, fits, level + 1)
            windows += full
    return [*windows, window]
