"""``AbsentTokenizer``: in the place of a tokenizer that a published folder lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qkv.spec.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer


class AbsentTokenizer(Tokenizer):
    """Refuses whatever needs text: every use raises ``UserError`` that names the folder and what works without a tokenizer."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __getattr__(self, name: str) -> Any:
        """Called for all that a tokenizer has and this one lacks."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(
            f'{self.folder} holds no tokenizer, so no text can be read or written; give ids (qkv generate --ids "1 2 3", '
            "qkv.generate(run, ids=[1, 2, 3])), or put its tokenizer.json there"
        )
