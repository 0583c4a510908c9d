"""``Tokenizer``: convert text to ids and back with a ``tokenizers.Tokenizer``, saved as a standard
``tokenizer.json``.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tokenizers
from tokenizers import models

from qkv.system.errors import UserError
from qkv.system.files import write_file
from qkv.tokenizers.byte_level import token_bytes
from qkv.tokenizers.chat import TEMPLATE_FILE
from qkv.tokenizers.coders import PlainCoder, coder_for
from qkv.tokenizers.folder import FILE_NAME as FILE_NAME
from qkv.tokenizers.folder import find
from qkv.tokenizers.framing import Frame, Framed, frame_of, framed, with_template
from qkv.tokenizers.special import deaf, missing, roles_by_content, special_ids, with_added, with_roles, written_roles

_CHARACTER = re.compile("[\\ud800-\\udbff][\\udc00-\\udfff]|(?s:.)")  # a surrogate pair is one character


class Tokenizer:
    """Tokenizer: conversion between text and token ids.

    Special tokens are neither added to texts nor parsed in them: "<eos>" in a text is plain text, so that neither data
    nor users can inject control tokens. ``reading_special`` parses them, as the transformers library does by default. A
    lone surrogate, which UTF-8 cannot encode, is read as U+FFFD. ``core``: the library's tokenizer; ``dtype``: smallest
    unsigned type for all ids; ``roles``: role -> text of special tokens whose texts are unusual. ``chat_template``:
    Jinja template that formats the messages of a chat, saved in a file beside the tokenizer's; None if there is none.
    """

    absent: ClassVar[bool] = False
    """True for the placeholder of a missing tokenizer."""

    def __init__(
        self, core: tokenizers.Tokenizer, roles: Mapping[str, str] | None = None, chat_template: str | None = None
    ):
        core.no_truncation()
        core.no_padding()
        roles = {role: content for role, content in (roles or {}).items() if core.token_to_id(content) is not None}
        core.add_special_tokens(
            [content for content in dict.fromkeys(roles.values()) if content not in special_ids(core)]
        )
        self.core, self.chat_template = core, chat_template
        self.vocab_size = 1 + max(core.get_vocab(with_added_tokens=True).values(), default=-1)
        self.unknown_id = _unknown_id(core)
        self.dtype = np.min_scalar_type(max(self.vocab_size - 1, 0))
        self.token_bytes = token_bytes(core)
        self._special_ids = special_ids(core)
        self._roles = {**roles_by_content(self._special_ids), **roles}
        self._plain = deaf(core)
        self._coder = coder_for(self._plain, self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(), "the text", None, self.chat_template)

    @property
    def specials(self) -> dict[str, int]:
        """Role -> id of the special tokens: "pad", "bos", "eos", "cls", "sep", "mask", "unk". Roles may share an id."""
        ids = {role: self._special_ids[content] for role, content in self._roles.items()}
        return ids if self.unknown_id is None else {**ids, "unk": self.unknown_id}

    def special(self, role: str) -> int | None:
        """Return the id of the special token with the role ``role`` ("bos", "mask", …), or None if the tokenizer lacks
        it.

        Raises ``UserError`` for an unknown role.
        """
        ids = self.specials
        if role not in ids and role != "unk":
            missing(ids, [role])
        return ids.get(role)

    def with_specials(self, roles: Sequence[str], extra: Sequence[str] = ()) -> Tokenizer:
        """Return a tokenizer with special tokens added after its last id: first those missing for ``roles``, then those
        with the texts ``extra``.

        Returns itself if nothing is missing. Raises ``UserError`` for an unknown role, and for "unk" if the tokenizer
        has no unknown token.
        """
        contents = [*missing(self.specials, roles), *(content for content in extra if content not in self._special_ids)]
        if not contents:
            return self
        return Tokenizer(with_added(self.core, dict.fromkeys(contents)), self._roles, self.chat_template)

    @cached_property
    def reading_special(self) -> Tokenizer:
        """Copy of this tokenizer that parses special tokens in texts, for texts from trusted authors."""
        tokenizer = copy.copy(self)
        tokenizer.__dict__.pop("reading_special", None)
        tokenizer._plain = tokenizers.Tokenizer.from_str(
            self.core.to_str()
        )  # the option set by ``deaf`` is not saved in files
        tokenizer._coder = PlainCoder(tokenizer._plain, self.dtype)
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Encode ``text`` as a list of ids. Raises ``UserError`` if a piece is not in the vocabulary and there is no
        unknown token.
        """
        return self.encode_array(text).tolist()

    def encode_array(self, text: str) -> np.ndarray:
        """Encode ``text`` as an array of ids with the tokenizer's ``dtype``."""
        return self._coder.encode_many([well_formed(text)])[0]

    def encode_many(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode the ``texts`` independently; return (concatenated ids of all texts, number of ids per text)."""
        if not is_well_formed("".join(texts)):
            texts = [well_formed(text) for text in texts]
        return self._coder.encode_many(texts)

    def border(self, text: str) -> int:
        """Return the last index at which ``text`` can be split for encoding in parts; 0 if there is none.

        The concatenated ids of the parts equal the ids of the whole text: characters and bytes can be split anywhere,
        words and BPE at white space. Other vocabularies are split after line breaks; they may encode the start of a
        part like the start of a text.
        """
        return self._coder.border(text)

    @property
    def framing(self) -> Tokenizer:
        """Copy of this tokenizer with a template: other libraries that load its file then add the same special tokens
        as ``encode_framed``.
        """
        core = with_template(self.core, (self.frame, self.pair_frame))
        return self if core is self.core else Tokenizer(core, self._roles, self.chat_template)

    def with_chat_template(self, template: str) -> Tokenizer:
        """Return a copy of this tokenizer with another chat template."""
        return Tokenizer(self.core, self._roles, template)

    def with_frame(self, frame: Frame) -> Tokenizer:
        """Return a copy of this tokenizer with other special tokens around one text."""
        tokenizer = type(self).__new__(type(self))
        tokenizer.__dict__ |= {**self.__dict__, "frame": frame}
        tokenizer.__dict__.pop("reading_special", None)
        return tokenizer

    @property
    def piece_size(self) -> int:
        """Preferred number of characters to encode at once, for splitting long texts."""
        return self._coder.piece_size

    def encode_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encode ``text``; return (ids, offsets). The token at offset (begin, end) covers ``text[begin:end]``.

        A token that is part of a character (bytes, BPE) has the span of the whole character, so neighbours may share a
        span.
        """
        encoding, offsets = self._encode_offsets(text)
        return encoding.ids, offsets

    def encode_words(self, text: str) -> tuple[list[int], list[tuple[int, int]], list[int | None]]:
        """Encode ``text``; return (ids, offsets, word of each token): the number of the piece, before BPE or WordPiece,
        that holds the token. None for a token outside of words.
        """
        encoding, offsets = self._encode_offsets(text)
        return encoding.ids, offsets, encoding.word_ids

    def _encode_offsets(self, text: str) -> tuple[tokenizers.Encoding, list[tuple[int, int]]]:
        plain = well_formed(text)
        encoding = self._library(plain)
        if len(plain) == len(text):
            return encoding, encoding.offsets
        starts = [match.start() for match in _CHARACTER.finditer(text)] + [len(text)]
        return encoding, [(starts[begin], starts[end]) for begin, end in encoding.offsets]

    def encode_framed(self, text: str, most: int | None = None) -> Framed:
        """Encode ``text`` with the special tokens that the model expects around it, truncated to at most ``most`` ids
        in total.
        """
        return framed(self.frame, self.encode(text), most)

    @cached_property
    def frame(self) -> Frame:
        """Special tokens that the model expects around one text; see ``qkv.tokenizers.framing``."""
        return frame_of(self.core, self.specials)

    @cached_property
    def pair_frame(self) -> Frame:
        """Special tokens that the model expects around and between two texts."""
        return frame_of(self.core, self.specials, texts=2)

    def _library(self, text: str) -> tokenizers.Encoding:
        try:
            return self._plain.encode(text, add_special_tokens=False)
        except Exception as error:  # the library raises nothing more precise
            raise UserError(f"the tokenizer cannot encode this text: {error}") from None

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Decode ``ids`` to text; invalid UTF-8 becomes U+FFFD. ``skip_special``: omit special tokens.

        An id without a token decodes to nothing; such ids exist if a model has more rows than its tokenizer has tokens.
        """
        ids = self.checked(ids)
        if skip_special:
            skipped = set(self._special_ids.values())
            ids = [index for index in ids if index not in skipped]
        if self.token_bytes is None:
            return self.core.decode(ids, skip_special_tokens=False)
        return b"".join(map(self.token_bytes.__getitem__, ids)).decode("utf-8", "replace")

    def checked(self, ids: Iterable[int]) -> list[int]:
        """Return those ``ids`` that are below the vocabulary size, as a list of ints. Raises ``UserError`` for a
        negative id.
        """
        numbers = [int(index) for index in ids]
        wrong = next((index for index in numbers if index < 0), None)
        if wrong is not None:
            raise UserError(f"the id {wrong} is outside the tokenizer's vocabulary of {self.vocab_size} ids")
        return [index for index in numbers if index < self.vocab_size]

    @cached_property
    def absent_ids(self) -> tuple[int, ...]:
        """Unused ids: ids below the vocabulary size that belong to no token."""
        used = set(self.core.get_vocab(with_added_tokens=True).values())
        return tuple(index for index in range(self.vocab_size) if index not in used)

    def unknown(self, text: str) -> list[str]:
        """Return the distinct substrings of ``text`` that are encoded as the unknown token, in order of occurrence."""
        if self.unknown_id is None:
            return []
        text = well_formed(text)
        encoding = self._library(text)
        pieces = (
            text[slice(*span)]
            for index, span in zip(encoding.ids, encoding.offsets, strict=True)
            if index == self.unknown_id
        )
        return list(dict.fromkeys(pieces))

    def unknown_bytes(self, texts: Iterable[str]) -> int:
        """Count the UTF-8 bytes of the parts of ``texts`` that are encoded as the unknown token."""
        if self.unknown_id is None:
            return 0
        total = 0
        for text in map(well_formed, texts):
            encoding = self._library(text)
            spans = (
                span for index, span in zip(encoding.ids, encoding.offsets, strict=True) if index == self.unknown_id
            )
            total += sum(len(text[slice(*span)].encode()) for span in spans)
        return total

    def to_json(self, pretty: bool = False) -> str:
        """Return the content of a ``tokenizer.json`` for this tokenizer, including the roles of its special tokens."""
        text = self.core.to_str(pretty=pretty)
        return text if roles_by_content(self._special_ids) == self._roles else with_roles(text, self._roles, pretty)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a ``tokenizer.json`` atomically to the file ``path``, or into the folder ``path``, and the chat
        template beside it.
        """
        target = _file_in(path)
        try:
            write_file(target, self.to_json(pretty=True).encode())
            if self.chat_template is not None and target.name == FILE_NAME:
                write_file(target.with_name(TEMPLATE_FILE), self.chat_template.encode())
        except OSError as error:
            raise UserError(f"the tokenizer cannot be written to {target}: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read a ``tokenizer.json`` or a Hugging Face folder, whose settings give the roles of special tokens.

        Older files are supported too: vocab.json and merges.txt (GPT-2 family), vocab.txt (BERT family), vocab.json and
        source.spm (Marian). Raises ``UserError`` if the file is missing or has another format.
        """
        return cls.from_json(*find(Path(path).expanduser()))

    @classmethod
    def from_json(
        cls,
        text: str,
        source: str = "the text",
        roles: Mapping[str, str] | None = None,
        chat_template: str | None = None,
    ) -> Tokenizer:
        """Build a tokenizer from the content of a ``tokenizer.json``.

        ``source``: name for error messages. ``roles``, ``chat_template``: roles of special tokens and chat template,
        which ``text`` does not store.
        """
        try:
            core, all_roles = tokenizers.Tokenizer.from_str(text), {**(roles or {}), **written_roles(text)}
            return cls(core, all_roles, chat_template)
        except Exception as error:  # the library raises nothing more precise
            raise UserError(f"{source} is not a tokenizer.json: {error}") from None


def is_well_formed(text: str) -> bool:
    """Return False if ``text`` contains a lone surrogate, which UTF-8 cannot encode."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def well_formed(text: str) -> str:
    """Return ``text`` with each lone surrogate replaced by U+FFFD."""
    return text if is_well_formed(text) else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _file_in(path: str | os.PathLike[str]) -> Path:
    path = Path(path).expanduser()
    return path / FILE_NAME if path.is_dir() else path


def _unknown_id(core: tokenizers.Tokenizer) -> int | None:
    if isinstance(core.model, models.Unigram):
        return json.loads(core.to_str())["model"].get("unk_id")
    token = core.model.unk_token
    return None if token is None else core.token_to_id(token)
