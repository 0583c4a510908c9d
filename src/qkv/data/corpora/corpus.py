"""Text as token ids on disk: encoded once, memory-mapped, and cached by content and encoding."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import tokenizers

from qkv.data.cache import stored
from qkv.data.corpora.documents import Pieces, pieces
from qkv.data.corpora.sources import Source, resolve, resolve_all
from qkv.data.corpora.text import TextSource
from qkv.data.corpora.trained import SHELF, load, save
from qkv.data.progress import progress
from qkv.spec import data as spec
from qkv.system.errors import UserError
from qkv.system.files import write_file
from qkv.tokenizers.coders import SpaceBorders
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

FORMAT = 2
"""Format version; incremented when the files change, so that older folders are ignored."""

TRAIN, VALIDATION, TEST = "train", "validation", "test"
RESIDENT = 1 << 28
"""Size in bytes up to which the pages of a mapped file are never released."""

LEAST = 2
"""Minimum number of characters in a split: one for the input, one for the target."""


@dataclass(frozen=True)
class TextCounts:
    """Size of one split: characters, UTF-8 bytes, tokens and documents.

    ``unknown``: number of unknown tokens; ``unknown_bytes``: UTF-8 bytes of the text that they replace.
    """

    characters: int
    bytes: int
    tokens: int
    documents: int
    unknown: int
    unknown_bytes: int = 0

    @property
    def bytes_per_token(self) -> float:
        """Average bytes per token; converts nats per token into bits per byte (with ln 2)."""
        return self.bytes / self.tokens

    @property
    def characters_per_token(self) -> float:
        """Average characters per token; converts nats per token into bits per character (with ln 2)."""
        return self.characters / self.tokens


@dataclass(frozen=True)
class Split:
    """One split of a corpus, memory-mapped.

    ``ids`` (tokens,): token ids in the smallest unsigned type. ``documents`` (documents,): int64, index in ``ids`` at
    which each document begins.
    """

    ids: np.ndarray
    documents: np.ndarray
    counts: TextCounts

    def release(self) -> None:
        """Release this process's resident pages of the mapped arrays. They stay in the system's file cache and are
        mapped again on access.
        """
        for array in (self.ids, self.documents):
            if array.nbytes > RESIDENT and isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
                array.base.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class Corpus:
    """Training and validation splits of one text under one tokenizer."""

    name: str
    tokenizer: Tokenizer
    splits: dict[str, Split]

    @property
    def train(self) -> np.ndarray:
        """Token ids of the training split, (tokens,)."""
        return self.splits[TRAIN].ids

    @property
    def validation(self) -> np.ndarray:
        """Token ids of the validation split, (tokens,)."""
        return self.splits[VALIDATION].ids


def open_corpus(data: spec.Data, tokenizer: Tokenizer | None = None) -> Corpus:
    """Open the encoded text of ``data`` from the cache, or encode it now, in memory independent of the text's size.

    If the data set has no validation split, the last ``validation_fraction`` of the characters is held out. If
    ``tokenizer`` is None, a tokenizer is trained on the training split only. With a document separator, each document
    is encoded separately.

    Raises ``UserError`` for a source that is missing, not UTF-8 or too short, and if the ids cannot be written.
    """
    source = resolve_all(data)
    parts = cache(lambda: _parts(source, data.validation_fraction))
    tokenizer = tokenizer or _trained(source, data, parts)
    splits = stored(
        "ids",
        _ids_key(source, data, tokenizer),
        _load,
        lambda folder: _build(folder, source.name, parts(), tokenizer, data),
    )
    return Corpus(source.name, tokenizer, splits)


def open_whole(data: spec.Data, name: str, tokenizer: Tokenizer, part: str) -> Corpus:
    """Encode the whole text ``name``, a file or a known data set, as a corpus whose only split is ``part``; cached.

    ``data``: settings, of which the document separator is used. Raises ``UserError``.
    """
    source = resolve(name)

    def build(folder: Path) -> None:
        _build(folder, name, {part: _Part(source.train, 0, source.train.characters())}, tokenizer, data)

    key = _key(source, data, [part, hashlib.sha256(tokenizer.core.to_str().encode()).hexdigest()])
    return Corpus(name, tokenizer, stored("ids", key, _load, build))


def _trained(source: Source, data: spec.Data, parts: Callable[[], dict[str, _Part]]) -> Tokenizer:
    """Return the tokenizer trained on the training split, from the cache or trained now."""
    sample = data.tokenizer.sample
    if sample == 0:
        return train(data.tokenizer, ())

    def build(folder: Path) -> None:
        save(train(data.tokenizer, _sample(parts()[TRAIN], data.batching.document_separator, sample)), folder)

    key = _key(source, data, [data.tokenizer.to_dict(), tokenizers.__version__])
    return stored(SHELF, key, load, build)


def _ids_key(source: Source, data: spec.Data, tokenizer: Tokenizer) -> str:
    return _key(source, data, hashlib.sha256(tokenizer.core.to_str().encode()).hexdigest())


def _key(source: Source, data: spec.Data, scheme: Any) -> str:
    """Compute a cache key: hash of the text's content and of all settings that determine the result.

    ``scheme``: the part of the key that identifies the tokenizer.
    """
    fraction = None if source.validation else data.validation_fraction
    decides = [FORMAT, source.digest, fraction, scheme, data.batching.document_separator]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:32]


class _Part(NamedTuple):
    """Split of a text before encoding: its characters from ``start`` to ``stop``."""

    text: TextSource
    start: int
    stop: int

    def blocks(self) -> Iterator[str]:
        return self.text.blocks(self.start, self.stop)


def _parts(source: Source, fraction: float) -> dict[str, _Part]:
    texts = {VALIDATION: source.validation, TEST: source.test}
    parts = {split: _Part(text, 0, text.characters()) for split, text in texts.items() if text}
    count = source.train.characters()
    if source.validation:
        return {TRAIN: _Part(source.train, 0, count), **parts}
    if not count:
        raise UserError(f"data.source: {source.name!r} is empty; a text needs at least {2 * LEAST} characters")
    border = int(count * (1 - fraction))
    if border < LEAST or count - border < LEAST:
        raise UserError(
            f"data.source: {source.name!r} holds {count} character{'s' * (count > 1)}; "
            f"validation_fraction={fraction:g} leaves {border} for training and {count - border} for validation, "
            f"and each needs at least {LEAST}"
        )
    splits = {TRAIN: _Part(source.train, 0, border), VALIDATION: _Part(source.train, border, count)}
    return {**splits, **parts}


def _build(folder: Path, name: str, parts: dict[str, _Part], tokenizer: Tokenizer, data: spec.Data) -> None:
    """Encode all splits of a text; write their ids and document starts to ``folder``, and the counts last."""
    counts = {}
    with progress(f"encoding {name}", sum(part.stop - part.start for part in parts.values())) as advance:
        for split, blocks in _streams(parts):
            with (folder / f"{split}.ids").open("xb") as ids, (folder / f"{split}.documents").open("xb") as documents:
                writer = _Writer(tokenizer, ids, documents)
                for block in pieces(blocks, tokenizer, data.batching.document_separator):
                    advance(writer.write(block))
                counts[split] = asdict(writer.finished(name))
    write_file(folder / "counts.json", json.dumps({"dtype": tokenizer.dtype.str, "splits": counts}).encode())


def _streams(parts: dict[str, _Part]) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield (split, blocks of its text), to be consumed in order.

    A split that begins where the previous split ends continues in the same pass over the text.
    """
    before: _Part | None = None
    blocks: Iterator[str] = iter(())
    for split, part in parts.items():
        if before is None or (part.text, part.start) != (before.text, before.stop):
            blocks = part.text.blocks(part.start)
        head, blocks = _parted(blocks, part.stop - part.start)
        yield split, head
        before = part


def _parted(blocks: Iterator[str], count: int) -> tuple[Iterator[str], Iterator[str]]:
    """Return two iterators over a text in blocks: the first ``count`` characters, and the rest. Consume the first one
    first.
    """
    rest = list[str]()

    def first() -> Iterator[str]:
        left = count
        while left and (block := next(blocks, "")):
            yield block[:left]
            rest[:] = [block[left:]] if len(block) > left else []
            left = max(0, left - len(block))

    def following() -> Iterator[str]:
        yield from rest
        yield from blocks

    return first(), following()


def _sample(part: _Part, separator: str | None, most: int | None) -> Iterator[str]:
    """Yield pieces of the training text to train the tokenizer on: all pieces, or evenly spaced pieces if the text has
    more than ``most`` characters.
    """
    every = 1 if most is None else -(-(part.stop - part.start) // most)
    for i, block in enumerate(pieces(part.blocks(), SpaceBorders(), separator)):
        if i % every == 0:
            yield from block.texts


class _Writer:
    """Encoder of one split that appends the ids and the document starts to two files."""

    def __init__(self, tokenizer: Tokenizer, ids: BinaryIO, documents: BinaryIO):
        self._tokenizer, self._ids, self._documents = tokenizer, ids, documents
        self._count = dict.fromkeys(TextCounts.__dataclass_fields__, 0)

    def write(self, pieces: Pieces) -> int:
        """Encode pieces of text and append their ids; return the number of characters."""
        if not pieces.texts:
            return 0
        ids, lengths = self._tokenizer.encode_many(pieces.texts)
        opens = np.array(pieces.opens)
        opens[0] |= not self._count["characters"]
        starts = (self._count["tokens"] + np.cumsum(lengths) - lengths)[opens]
        self._ids.write(ids.data)
        self._documents.write(starts.astype(np.int64).data)
        text = "".join(pieces.texts)
        self._count["characters"] += len(text)
        self._count["bytes"] += len(text) if text.isascii() else len(text.encode())
        self._count["tokens"] += len(ids)
        self._count["documents"] += len(starts)
        if self._tokenizer.unknown_id is not None:
            self._count_unknown(pieces.texts, ids, lengths)
        return len(text)

    def _count_unknown(self, texts: Sequence[Any], ids: np.ndarray, lengths: np.ndarray) -> None:
        places = np.flatnonzero(ids == self._tokenizer.unknown_id)
        holding = np.unique(np.searchsorted(np.cumsum(lengths), places, side="right"))
        self._count["unknown"] += len(places)
        self._count["unknown_bytes"] += self._tokenizer.unknown_bytes([texts[i] for i in holding.tolist()])

    def finished(self, name: str) -> TextCounts:
        if not self._count["tokens"]:
            raise UserError(
                f"data.tokenizer: no token comes from the {self._count['characters']} characters of a split of "
                f"{name!r}; choose a tokenizer whose vocabulary has these characters"
            )
        for file in (self._ids, self._documents):
            file.flush()
            os.fsync(file.fileno())
        return TextCounts(**self._count)


def _load(folder: Path) -> dict[str, Split] | None:
    """Open the encoded splits in a cache folder, memory-mapped; None if files are missing, truncated or inconsistent
    with their counts.
    """
    try:
        content = json.loads((folder / "counts.json").read_text(encoding="utf-8"))
        return {
            name: _split(folder, name, TextCounts(**content["splits"][name]), np.dtype(content["dtype"]))
            for name in content["splits"]
        }
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _split(folder: Path, name: str, counts: TextCounts, dtype: np.dtype) -> Split:
    ids = _mapped(folder / f"{name}.ids", dtype, counts.tokens)
    return Split(ids, _mapped(folder / f"{name}.documents", np.dtype(np.int64), counts.documents), counts)


def _mapped(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    """Memory-map the ``count`` elements of a file. Raises ``ValueError`` if the file has another size."""
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path} has another size than its counts say")
    with path.open("rb") as file:
        return np.ndarray(count, dtype, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
