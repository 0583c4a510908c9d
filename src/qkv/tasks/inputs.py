"""Readers of inputs: they encode a row's text, pair of texts or other signal, and collate rows to a batch signal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import INPUT, Batch
from qkv.data.batching.padding import lengths_or_none, padded
from qkv.data.features.ngrams import Bag, bag_of
from qkv.data.processors.processor import Encoded, Processor, build_processor
from qkv.data.records.model import Role
from qkv.layers.features import FeatureBag, with_features
from qkv.layers.signal import Signal
from qkv.spec.data import Data
from qkv.spec.models.wide import WidePath
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import Example
from qkv.tasks.example_task import Truncation, text_in, types_or_none
from qkv.tokenizers.framing import Framed
from qkv.tokenizers.tokenizer import Tokenizer

TEXT = Role(
    "text", "text", ("text", "sentence", "review", "content", "sequence", "comment", "tweet", "body", "message")
)
PAIR = Role("pair", "text", ("pair", "hypothesis", "sentence2", "question2"), optional=True)
"""Optional second text, for predictions about pairs."""
ROWS = "rows"
"""Name of the tensor, in the extras of a batch, with the row index of each window."""
PARTNERS, SHARE = "partners", "share"
"""Names of the tensors in the extras of a batch with mixed images, as in mixup.

They hold the classes of the images mixed in (B), and the weight of each row's original class.
"""


class EncodedRow(NamedTuple):
    """Fields of an example with one target.

    value: the input: ``EncodedText``, or the encoded value of a processor.   truth: the target.
    features (F), bag: input of the wide path, depending on its kind; None if unused.
    """

    value: Any
    truth: Any
    features: np.ndarray | None = None
    bag: Bag | None = None


class EncodedText(NamedTuple):
    """Text or pair of texts in windows, each framed with special tokens.

    ids, types: token ids and token types of all windows, concatenated; types are empty if the model reads none.
    lengths: length of each window.
    """

    ids: np.ndarray
    types: np.ndarray
    lengths: np.ndarray


def input_roles(data: Data) -> tuple[Role, ...]:
    """Return the roles of the input columns.

    The processor names the role of a single input; each of several inputs has its own name as its role. If a text is
    the only input, a second text is optional.
    """
    roles = {name: (build_processor(each).role_of(name),) for name, each in data.processors.items()}
    return tuple(role for name in data.readers for role in roles.get(name) or text_roles(data))


def text_roles(data: Data) -> tuple[Role, ...]:
    """Return the roles of the text input; empty if no input is a text."""
    name = data.text_input
    if name == INPUT:
        return TEXT, PAIR
    return () if name is None else (TEXT.rename(name),)


class InputReader(ABC):
    """Base class of readers of a row's input."""

    @abstractmethod
    def example(self, row: Mapping[str, Any], truth: Any) -> Example:
        """Encode the input of a row with the target ``truth`` as an ``EncodedRow``. Raises ``UserError``."""

    @abstractmethod
    def noted(self, row: Mapping[str, Any], truth: Any) -> tuple[EncodedRow, dict[str, str]]:
        """Encode a row for prediction: return (fields, {"note": …} if the input was truncated, else {})."""

    @abstractmethod
    def signal(self, rows: Sequence[EncodedRow]) -> tuple[Signal, Tensor | None]:
        """Collate rows: return (signal, row index of each window, or None if each row has one window)."""

    @abstractmethod
    def notes(self, examples: int) -> list[str]:
        """Return messages about truncated inputs; ``examples``: total number of examples."""

    @abstractmethod
    def shown(self, row: Mapping[str, Any]) -> str:
        """Format the input of a row as a short text for tables."""

    def picture(self, row: Mapping[str, Any]) -> str | None:
        """Render the input of a row as a small picture (data URI); None if it has no picture."""
        return None

    def player(self, row: Mapping[str, Any]) -> str | None:
        """Return the input of a row as a sound to play (data URI); None if it is no sound."""
        return None

    def frames_read(self, row: EncodedRow, count: int) -> list[str]:
        """Render the input of a row, as the model reads it, as small pictures (data URIs).

        One picture for each of ``count`` positions in time; empty if the input has no pictures.
        """
        return []

    def change(self, batch: Batch, rng: np.random.Generator) -> Batch:
        """Augment a training batch at random; by default, return it unchanged."""
        return batch

    def batch(self, rows: Sequence[EncodedRow], targets: Tensor, count: int | None = None) -> Batch:
        """Build a batch of several rows with their ``targets``."""
        signal, owners = self.signal(rows)
        return Batch.of(signal, targets, None, count, **({} if owners is None else {ROWS: owners}))


class SignalReader(InputReader):
    """Reader of inputs that a processor converts, such as images.

    If there is a wide path ``wide``, the signal also holds the features or the bag that it reads.
    """

    def __init__(self, processor: Processor, wide: WidePath | None = None):
        self.processor, self.wide = processor, wide
        self.counts = wide is not None and wide.counts

    def example(self, row: Mapping[str, Any], truth: Any) -> Example:
        encoded = self.processor.read(row[self.processor.role.name])
        size = self.processor.size(encoded)
        return Example(size, 1, self._wide(EncodedRow(encoded, truth)))

    def _wide(self, row: EncodedRow) -> EncodedRow:
        """Add the features, or the bag of counted features, that the wide path reads; without one, return ``row``."""
        if self.wide is None:
            return row
        if self.counts:
            return row._replace(bag=self.processor.bag(row.value, self.wide))
        return row._replace(features=self.processor.read_by(row.value, self.wide))

    def noted(self, row: Mapping[str, Any], truth: Any) -> tuple[EncodedRow, dict[str, str]]:
        value = row[self.processor.role.name]
        note = "" if isinstance(value, Encoded) else self.processor.note(value)
        return self.example(row, truth).fields, {"note": note} if note else {}

    def signal(self, rows: Sequence[EncodedRow]) -> tuple[Signal, Tensor | None]:
        signal = self.processor.signal([row.value for row in rows])
        if self.counts:
            signal = with_bags(signal, [row.bag for row in rows if row.bag is not None])
        elif self.wide is not None:
            signal = with_vectors(signal, [row.features for row in rows if row.features is not None])
        return signal, None

    def frames_read(self, row: EncodedRow, count: int) -> list[str]:
        return self.processor.frames_read(row.value, count)

    def change(self, batch: Batch, rng: np.random.Generator) -> Batch:
        signal, mixed = self.processor.augmented(batch.input, rng)
        batch = replace(batch, signals={**batch.signals, INPUT: signal})
        if mixed is None:
            return batch
        if batch.targets.is_floating_point():
            targets = mixed.share * batch.targets + (1 - mixed.share) * batch.targets[mixed.partner]
            return replace(batch, targets=targets)
        partners = {PARTNERS: batch.targets[mixed.partner], SHARE: mixed.share}
        return replace(batch, extras={**batch.extras, **partners})

    def notes(self, examples: int) -> list[str]:
        return self.processor.notes()

    def picture(self, row: Mapping[str, Any]) -> str | None:
        return self.processor.picture(row[self.processor.role.name])

    def player(self, row: Mapping[str, Any]) -> str | None:
        return self.processor.player(row[self.processor.role.name])

    def shown(self, row: Mapping[str, Any]) -> str:
        return self.processor.shown(row[self.processor.role.name])


_ROLES = {1: "text", 2: "pair"}
"""Number of texts of an input -> name of the input in messages about truncation."""


def texts_of(row: Mapping[str, Any]) -> list[str]:
    """Return the text of ``row``, and its second text if present."""
    return [text_in(row, role) for role in _parts(row)]


def _parts(row: Mapping[str, Any], roles: Sequence[str] = ("text", "pair")) -> list[str]:
    return [role for role in roles if role == roles[0] or row.get(role) is not None]


def row_text(row: Mapping[str, Any], roles: Sequence[str] = ("text", "pair")) -> str:
    """Return the text of a row, or both texts of a pair joined, for display and for n-grams."""
    return " | ".join(row[role] for role in _parts(row, roles))


class TextReader(InputReader, Truncation):
    """Reader of the text or pair of texts of a row. A pair is truncated to the context length.

    A single text is split into up to ``task.windows`` windows that overlap by an eighth, each with special tokens; the
    rest is cut off.
    """

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer):
        most, self.tokenizer = recipe.model.context_length, tokenizer
        room = {"text": max(0, most - tokenizer.frame.size), "pair": max(0, most - tokenizer.pair_frame.size)}
        self.windows, self.wide = recipe.task.windows, recipe.wide  # type: ignore[attr-defined]
        self.pairs = "pair" in recipe.data.columns
        self.room = room["text"]
        limits = {**room, "text": room["text"] + (self.windows - 1) * self._stride}
        Truncation.__init__(self, limits, recipe.model.types_read)
        self.num_tokens = self.num_unknown = 0
        self.begin = _begin(recipe, tokenizer)

    def batch(self, rows: Sequence[EncodedRow], targets: Tensor, count: int | None = None) -> Batch:
        """Build a batch of several rows. In an encoder–decoder, the decoder reads ``begin`` and then the same text."""
        if not self.begin:
            return super().batch(rows, targets, count)
        source, owners = self.signal(rows)
        begin = torch.tensor(self.begin).expand(len(source.values), -1)
        later = torch.cat((begin, source.values), 1)[:, : source.values.shape[1]]
        extras = {} if owners is None else {ROWS: owners}
        return Batch.of(Signal(later, source.lengths), targets, source, count, **extras)

    def notes(self, examples: int) -> list[str]:
        notes = Truncation.notes(self, examples)
        if self.num_tokens and 2 * self.num_unknown >= self.num_tokens:
            share = 100 * self.num_unknown / self.num_tokens
            notes.append(f"{share:.0f} % of the tokens of the texts are unknown to the run's tokenizer")
        return notes

    def shown(self, row: Mapping[str, Any]) -> str:
        return row_text(row)

    @property
    def _stride(self) -> int:
        return max(1, self.room - self.room // 8)

    def example(self, row: Mapping[str, Any], truth: Any) -> Example:
        read, _ = self._read(texts_of(row), truth)
        return Example(len(read.value.ids), 1, read)

    def noted(self, row: Mapping[str, Any], truth: Any) -> tuple[EncodedRow, dict[str, str]]:
        if self.pairs and row.get("pair") is None:
            raise UserError("the model was trained on pairs of texts, but the second text, 'pair', is missing")
        texts = texts_of(row)
        read, length = self._read(texts, truth)
        return read, self.note(length, _ROLES[len(texts)])

    def _read(self, texts: Sequence[str], truth: Any) -> tuple[EncodedRow, int]:
        """Encode the texts of one row: return (fields, number of tokens before truncation)."""
        tokens = [self.tokenizer.encode(text) for text in texts]
        length = sum(map(len, tokens))
        self.num_tokens += length
        if self.tokenizer.unknown_id is not None:
            self.num_unknown += sum(framed.count(self.tokenizer.unknown_id) for framed in tokens)
        read = [self.framed(framed) for framed in self._framed(tokens)]
        ids, types = (
            np.concatenate([np.array(part, np.int64) for part in side])
            for side in zip(*((framed.ids, framed.types) for framed in read), strict=True)
        )
        text = EncodedText(ids, types, np.array([len(framed.ids) for framed in read]))
        return EncodedRow(text, truth, bag=None if self.wide is None else bag_of(self.wide, texts)), length

    def _framed(self, tokens: Sequence[list[int]]) -> list[Framed]:
        if len(tokens) > 1:
            return [self.tokenizer.pair_frame.around(*self.together(tokens[0], tokens[1], "pair"))]
        ids = self(tokens[0], "text").tolist()
        starts = range(0, max(1, len(ids) - self.room + self._stride), self._stride)
        return [self.tokenizer.frame.around(ids[start : start + self.room]) for start in starts]

    def signal(self, rows: Sequence[EncodedRow]) -> tuple[Signal, Tensor | None]:
        texts: list[EncodedText] = [row.value for row in rows]
        ends = [np.cumsum(text.lengths)[:-1] for text in texts]
        pieces = [part for text, end in zip(texts, ends, strict=True) for part in np.split(text.ids, end)]
        ids, lengths = padded(pieces)
        types = [part for text, end in zip(texts, ends, strict=True) for part in _split(text.types, end)]
        owners = None
        if len(pieces) > len(rows):
            counts = torch.tensor([len(text.lengths) for text in texts])
            owners = torch.repeat_interleave(torch.arange(len(rows)), counts)
        signal = Signal(ids, lengths_or_none(ids, lengths), types=types_or_none(types))
        bags = [row.bag for row in rows if row.bag is not None]
        if bags:
            signal = with_bags(signal, bags, owners)
        return signal, owners


def _begin(recipe: Recipe, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids at the beginning of a decoder's input; () without an encoder. Raises ``UserError``."""
    begin = getattr(recipe.task, "begin", ()) if recipe.model.encoder else ()
    ids = {content: tokenizer.core.token_to_id(content) for content in begin}
    unknown = next((content for content, index in ids.items() if index is None), None)
    if unknown is not None:
        raise UserError(f"task.begin: the tokenizer has no token {unknown!r}")
    return tuple(index for content in begin if (index := ids[content]) is not None)


def with_bags(signal: Signal, bags: Sequence[Bag], owners: Tensor | None = None) -> Signal:
    """Return a copy of a signal with the bag of each row, padded to equal length.

    owners (W): index of the bag of each row of the signal, if several rows are windows of one text.
    """
    ids, _ = padded([bag.ids for bag in bags])
    counts, _ = padded([bag.counts for bag in bags], dtype=np.float32)
    rows = slice(None) if owners is None else owners
    return with_features(signal, FeatureBag(ids[rows], counts=counts[rows]))


def with_vectors(signal: Signal, features: Sequence[np.ndarray]) -> Signal:
    """Return a copy of a signal with the features (F,) of each row."""
    return with_features(signal, Signal(torch.from_numpy(np.stack(features).astype(np.float32, copy=False))))


def _split(types: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    """Split the token types of a row by window; they are empty if the model reads none."""
    return np.split(types, ends) if len(types) else [types] * (len(ends) + 1)
