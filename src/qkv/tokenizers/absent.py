"""``AbsentTokenizer``: placeholder for a missing tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer


class AbsentTokenizer(Tokenizer):
    """Placeholder for the tokenizer of a model that has none.

    Every use raises ``UserError`` with the ``reason`` and what to do instead.
    """

    absent = True

    def __init__(self, reason: str):
        self.reason = reason

    @classmethod
    def of_published(cls, folder: Path) -> AbsentTokenizer:
        """Return the placeholder for a published checkpoint folder that holds no tokenizer."""
        return cls(
            f'{folder} holds no tokenizer, so no text can be read or written; give ids (qkv generate --ids "1 2 3", '
            "qkv.generate(run, ids=[1, 2, 3])), or put its tokenizer.json there"
        )

    def __getattr__(self, name: str) -> Any:
        """Raise ``UserError`` with the reason for any use of the tokenizer."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(self.reason)


NO_TEXT = AbsentTokenizer(
    "the run has no tokenizer: its model neither reads nor writes text, or was saved without one; give ids "
    "(a model of images: qkv generate RUN --image FILE)"
)
"""Placeholder tokenizer of a run whose model has no tokenizer."""
