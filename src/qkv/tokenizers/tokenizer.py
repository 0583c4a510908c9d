"""``Tokenizer``: text to ids and back, over a ``tokenizers.Tokenizer``, so that its file loads in every tool that reads a ``tokenizer.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models

from qkv.spec.errors import UserError
from qkv.tokenizers.byte_level import token_bytes
from qkv.tokenizers.coders import coder_for
from qkv.tokenizers.files import write_whole

FILE_NAME = "tokenizer.json"


class Tokenizer:
    """Text <-> ids.

    No special token is added to a text. A lone surrogate, which no UTF-8 text can hold, is read as U+FFFD.
    ``core`` is the library's tokenizer; ``dtype`` the smallest unsigned type that holds every id.
    """

    def __init__(self, core: tokenizers.Tokenizer):
        core.no_truncation()
        core.no_padding()
        self.core = core
        self.vocab_size = 1 + max(core.get_vocab(with_added_tokens=True).values(), default=-1)
        self.unknown_id = _unknown_id(core)
        self.dtype = np.min_scalar_type(max(self.vocab_size - 1, 0))
        self.token_bytes = token_bytes(core)
        self._coder = coder_for(core, self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.core.to_str(),)

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``. Raises ``UserError`` if a vocabulary from a file knows neither a piece of it nor an unknown token."""
        return self.encode_array(text).tolist()

    def encode_array(self, text: str) -> np.ndarray:
        """The ids of ``text`` as an array of ``dtype``."""
        return self._coder.encode_many([well_formed(text)])[0]

    def encode_many(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all ``texts`` joined, and how many ids each of them has. Each text stands alone."""
        if not is_well_formed("".join(texts)):
            texts = [well_formed(text) for text in texts]
        return self._coder.encode_many(texts)

    def border(self, text: str) -> int:
        """The last place at which ``text``, and what may follow it, can be cut for encoding in parts; 0 if there is none.

        The parts have the ids of the whole: characters and bytes anywhere, words and BPE at white space. A vocabulary from a file
        is cut after line ends, and may encode the beginning of a part as it would the beginning of a text.
        """
        return self._coder.border(text)

    @property
    def piece_size(self) -> int:
        """Characters that are best encoded at once."""
        return self._coder.piece_size

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD. Raises ``UserError`` for an id outside the vocabulary."""
        ids = self.checked(ids)
        if self.token_bytes is None:
            return self.core.decode(ids, skip_special_tokens=False)
        return b"".join(map(self.token_bytes.__getitem__, ids)).decode("utf-8", "replace")

    def checked(self, ids: Iterable[int]) -> list[int]:
        """``ids`` as a list of ints, each inside the vocabulary."""
        found = [int(index) for index in ids]
        wrong = next((index for index in found if not 0 <= index < self.vocab_size), None)
        if wrong is not None:
            raise UserError(f"the id {wrong} is outside the tokenizer's vocabulary of {self.vocab_size} ids")
        return found

    def unknown(self, text: str) -> list[str]:
        """The pieces of ``text`` that become the unknown token, each once, in the order of the text."""
        if self.unknown_id is None:
            return []
        text = well_formed(text)
        encoding = self.core.encode(text, add_special_tokens=False)
        pieces = (text[slice(*span)] for index, span in zip(encoding.ids, encoding.offsets, strict=True) if index == self.unknown_id)
        return list(dict.fromkeys(pieces))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a ``tokenizer.json`` whole, or not at all. A folder receives it under that name."""
        target = _file_in(path)
        try:
            write_whole(target, self.core.to_str(pretty=True).encode())
        except OSError as error:
            raise UserError(f"the tokenizer cannot be written to {target}: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read a ``tokenizer.json``, or the folder that holds one. Raises ``UserError`` if it is missing or is something else."""
        file = _file_in(path)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UserError(f"the tokenizer {file} cannot be read: {reason}") from None
        return cls.from_json(text, str(file))

    @classmethod
    def from_json(cls, text: str, source: str = "the text") -> Tokenizer:
        """A tokenizer from the content of a ``tokenizer.json``; ``source`` names it in errors."""
        try:
            return cls(tokenizers.Tokenizer.from_str(text))
        except Exception as error:  # the library raises nothing more precise
            raise UserError(f"{source} is not a tokenizer.json: {error}") from None


def is_well_formed(text: str) -> bool:
    """False if ``text`` holds a lone surrogate, for which UTF-8 has no bytes."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def well_formed(text: str) -> str:
    """``text`` with each lone surrogate replaced by U+FFFD."""
    return text if is_well_formed(text) else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _file_in(path: str | os.PathLike[str]) -> Path:
    path = Path(path).expanduser()
    return path / FILE_NAME if path.is_dir() else path


def _unknown_id(core: tokenizers.Tokenizer) -> int | None:
    if isinstance(core.model, models.Unigram):
        return json.loads(core.to_str())["model"].get("unk_id")
    token = core.model.unk_token
    return None if token is None else core.token_to_id(token)
