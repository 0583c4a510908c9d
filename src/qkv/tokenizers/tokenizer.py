"""``Tokenizer``: text to ids and back, over a ``tokenizers.Tokenizer``, so that its file loads in every tool that reads a ``tokenizer.json``."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models

from qkv.spec.errors import UserError
from qkv.tokenizers.byte_level import token_bytes
from qkv.tokenizers.coders import PlainCoder, coder_for
from qkv.tokenizers.files import write_whole
from qkv.tokenizers.folder import FILE_NAME as FILE_NAME
from qkv.tokenizers.folder import find
from qkv.tokenizers.framing import Frame, Framed, frame_of, framed
from qkv.tokenizers.special import deaf, missing, roles_by_content, special_ids, with_added, with_roles, written_roles

_CHARACTER = re.compile("[\\ud800-\\udbff][\\udc00-\\udfff]|(?s:.)")  # a pair of surrogates is one character


class Tokenizer:
    """Text <-> ids.

    No special token is added to a text, and none is read from one: "<eos>" in a text is plain text, so that neither data nor
    a user can spell a control token. ``reading_special`` reads them, as the transformers library does by default. A lone surrogate, which
    no UTF-8 text can hold, is read as U+FFFD. ``core`` is the library's tokenizer; ``dtype`` the smallest unsigned type that holds every id.
    ``roles`` are contents of special tokens by role, where the usual ways of writing them do not tell.
    """

    def __init__(self, core: tokenizers.Tokenizer, roles: Mapping[str, str] | None = None):
        core.no_truncation()
        core.no_padding()
        roles = {role: content for role, content in (roles or {}).items() if core.token_to_id(content) is not None}
        core.add_special_tokens([content for content in dict.fromkeys(roles.values()) if content not in special_ids(core)])
        self.core = core
        self.vocab_size = 1 + max(core.get_vocab(with_added_tokens=True).values(), default=-1)
        self.unknown_id = _unknown_id(core)
        self.dtype = np.min_scalar_type(max(self.vocab_size - 1, 0))
        self.token_bytes = token_bytes(core)
        self._special_ids = special_ids(core)
        self._roles = {**roles_by_content(self._special_ids), **roles}
        self._plain = deaf(core)
        self._coder = coder_for(self._plain, self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)

    @property
    def specials(self) -> dict[str, int]:
        """The id of each role that this tokenizer has: "pad", "bos", "eos", "cls", "sep", "mask", "unk". Two roles may share one."""
        found = {role: self._special_ids[content] for role, content in self._roles.items()}
        return found if self.unknown_id is None else {**found, "unk": self.unknown_id}

    def special(self, role: str) -> int | None:
        """The id of ``role``, None if this tokenizer lacks it. Raises ``UserError`` for a role that nobody knows."""
        found = self.specials
        if role not in found and role != "unk":
            missing(found, [role])
        return found.get(role)

    def with_specials(self, roles: Sequence[str], extra: Sequence[str] = ()) -> Tokenizer:
        """This tokenizer, with the ``roles`` that it lacks, and then ``extra`` by content, as special tokens after its last id.

        Itself if nothing is missing. Raises ``UserError`` for a role that nobody knows, and for "unk" where every text has ids.
        """
        contents = [*missing(self.specials, roles), *(content for content in extra if content not in self._special_ids)]
        if not contents:
            return self
        return Tokenizer(with_added(self.core, dict.fromkeys(contents)), self._roles)

    @cached_property
    def reading_special(self) -> Tokenizer:
        """This tokenizer, for which a special token that a text spells is one id. For texts whose author may write such tokens."""
        found = copy.copy(self)
        found.__dict__.pop("reading_special", None)
        found._plain = tokenizers.Tokenizer.from_str(self.core.to_str())  # the switch of ``deaf`` is not kept in a file
        found._coder = PlainCoder(found._plain, self.dtype)
        return found

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

    def encode_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of ``text``, and for each the characters that it stands for: ``text[begin:end]`` covers its piece.

        A piece of a character (bytes, BPE) has the span of that character, so that neighbours may share one.
        """
        plain = well_formed(text)
        encoding = self._library(plain)
        if len(plain) == len(text):
            return encoding.ids, encoding.offsets
        starts = [match.start() for match in _CHARACTER.finditer(text)] + [len(text)]
        return encoding.ids, [(starts[begin], starts[end]) for begin, end in encoding.offsets]

    def encode_framed(self, text: str, most: int | None = None) -> Framed:
        """The ids of ``text`` within what its model expects round it, at most ``most`` in all."""
        return framed(self.frame, self.encode(text), most)

    @cached_property
    def frame(self) -> Frame:
        """What its model expects round a text; see ``qkv.tokenizers.framing``."""
        return frame_of(self.core, self.specials)

    @cached_property
    def pair_frame(self) -> Frame:
        """What its model expects round two texts and between them."""
        return frame_of(self.core, self.specials, texts=2)

    def _library(self, text: str) -> tokenizers.Encoding:
        try:
            return self._plain.encode(text, add_special_tokens=False)
        except Exception as error:  # the library raises nothing more precise
            raise UserError(f"the tokenizer cannot encode this text: {error}") from None

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD. Raises ``UserError`` for an id outside the vocabulary.

        ``skip_special``: without the special tokens.
        """
        ids = self.checked(ids)
        if skip_special:
            skipped = set(self._special_ids.values())
            ids = [index for index in ids if index not in skipped]
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
        encoding = self._library(text)
        pieces = (text[slice(*span)] for index, span in zip(encoding.ids, encoding.offsets, strict=True) if index == self.unknown_id)
        return list(dict.fromkeys(pieces))

    def to_json(self, pretty: bool = False) -> str:
        """The content of a ``tokenizer.json`` that gives this tokenizer, its roles included."""
        text = self.core.to_str(pretty=pretty)
        return text if roles_by_content(self._special_ids) == self._roles else with_roles(text, self._roles, pretty)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a ``tokenizer.json`` whole, or not at all. A folder receives it under that name."""
        target = _file_in(path)
        try:
            write_whole(target, self.to_json(pretty=True).encode())
        except OSError as error:
            raise UserError(f"the tokenizer cannot be written to {target}: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read a ``tokenizer.json``, or a folder of the Hugging Face form, whose settings name the roles of its special tokens.

        A folder may hold the files that came before: vocab.json and merges.txt of GPT-2's family, vocab.txt of BERT's.
        Raises ``UserError`` if it is missing or is something else.
        """
        return cls.from_json(*find(Path(path).expanduser()))

    @classmethod
    def from_json(cls, text: str, source: str = "the text", roles: Mapping[str, str] | None = None) -> Tokenizer:
        """A tokenizer from the content of a ``tokenizer.json``; ``source`` names it in errors. ``roles`` are those it does not tell itself."""
        try:
            return cls(tokenizers.Tokenizer.from_str(text), {**(roles or {}), **written_roles(text)})
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
