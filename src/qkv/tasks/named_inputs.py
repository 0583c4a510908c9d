"""Readers of rows with several named inputs: a text, and other values that are placed between its tokens."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from qkv.data.batching.batch import INPUT, Batch
from qkv.data.batching.padding import lengths_or_none, padded
from qkv.data.features.ngrams import Bag, bag_of
from qkv.data.processors.processor import build_processor
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal, placeholder
from qkv.spec.models.wide import WidePath
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import Example, leaves
from qkv.tasks.example_task import Truncation, text_in
from qkv.tasks.inputs import EncodedRow, InputReader, SignalReader, TextReader, with_bags


class EncodedInputs(NamedTuple):
    """Encoded inputs of a row: ids (N) with placeholder ids for the other inputs, and their encoded values in order."""

    ids: np.ndarray
    values: tuple[Any, ...] = ()


class InputsEncoder(Truncation):
    """Encoder of the inputs of a row to at most ``room`` positions.

    The text is truncated to the positions that the other inputs leave. ``<name>`` in the text marks where the value of
    the input ``name`` is inserted. Values without such a tag come before the text, in the order of ``data.inputs``.
    """

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary, room: int, **limits: int):
        """Create the encoder. ``limits``: largest number of tokens of each text besides the first, by role, see
        ``Truncation``.
        """
        data = recipe.data
        self.text, self.room, self.tokenizer = data.text_input, room, vocabulary.tokenizer
        self.processors = {name: build_processor(vocabulary.processors[name]) for name in data.processors}
        self.frontends = recipe.model.frontend.of_processors(vocabulary.processors).inputs_read
        self._places = re.compile(f"<({'|'.join(map(re.escape, self.processors)) or '(?!)'})>")
        super().__init__({**({self.text: room} if self.text else {}), **limits})

    def encode(self, row: Mapping[str, Any]) -> tuple[EncodedInputs, int]:
        """Encode a row; return (inputs, number of text tokens before truncation). Raises ``UserError``."""
        values = {name: processor.read(row[name]) for name, processor in self.processors.items()}
        spans = {name: self.span(name, value) for name, value in values.items()}
        left = self.room - sum(map(len, spans.values()))
        if left < 0:
            counts = " and ".join(f"{len(span)} of {name}" for name, span in spans.items())
            raise UserError(f"a row has {counts}, more positions than the {self.room} that the model can read")
        pieces = list(self._pieces(text_in(row, self.text) if self.text else "", spans))
        length = sum(len(piece) for name, piece in pieces if not name)
        if self.text:
            self.limits = {**self.limits, self.text: left}
            self._count(length, self.text)
        ids = list[int]()
        for name, piece in pieces:
            piece_ids = piece if name else piece[:left]
            ids += piece_ids
            left -= 0 if name else len(piece_ids)
        return EncodedInputs(np.array(ids, np.int64), tuple(values.values())), length

    def span(self, name: str, value: Any) -> list[int]:
        """Return the placeholder ids of an encoded value, with the words that its processor puts between them.

        They contain its hash, so other values have other ids.
        """
        total = hashlib.blake2b(digest_size=6)
        for leaf in leaves(value):
            total.update(leaf.tobytes() if isinstance(leaf, np.ndarray) else repr(leaf).encode())
        content = int.from_bytes(total.digest(), "little")
        count = self.frontends[name].positions_of(self.processors[name].size(value))
        place = [placeholder(list(self.frontends).index(name), len(self.frontends), content)] * count
        return self.processors[name].span(value, place, lambda text: self.tokenizer.reading_special.encode(text))

    def _pieces(self, text: str, spans: Mapping[str, list[int]]) -> Iterator[tuple[str, list[int]]]:
        """Yield in order (name, placeholder ids) of each value and ("", token ids) of each piece of the text."""
        placed = dict.fromkeys(self._places.findall(text))
        yield from ((name, span) for name, span in spans.items() if name not in placed)
        begin = 0
        for match in self._places.finditer(text):
            if match[1] in placed:  # a repeated tag is plain text, as a row has one value per input
                yield "", self.tokenizer.encode(text[begin : match.start()])
                yield match[1], spans[match[1]]
                del placed[match[1]]
                begin = match.end()
        if text[begin:]:
            yield "", self.tokenizer.encode(text[begin:])

    def signals(self, rows: Sequence[tuple[Any, ...]]) -> dict[str, Signal]:
        """Collate the encoded values of several rows to one signal per input, by name."""
        columns = zip(*rows, strict=True)
        return {
            name: processor.signal(list(column))
            for (name, processor), column in zip(self.processors.items(), columns, strict=True)
        }

    def shown(self, row: Mapping[str, Any]) -> str:
        """Format the inputs of a row as a short text for tables."""
        texts = {name: processor.shown(row[name]) for name, processor in self.processors.items()}
        return " | ".join([*texts.values(), *([str(row[self.text])] if self.text else [])])

    def notes(self, examples: int) -> list[str]:
        notes = [f"{name}: {note}" for name, processor in self.processors.items() for note in processor.notes()]
        text = self.text
        if text and self.counts[text]:
            some = f"{self.counts[text]:,} of {examples:,} examples were truncated"
            notes.append(f"{some}: their {text} and other inputs do not fit")
        return notes


def reader_of(recipe: Recipe, vocabulary: Vocabulary) -> InputReader:
    """Return the reader of a run's inputs: of a text, of a processor's values, or of several inputs in one row."""
    if recipe.data.inputs:
        return JoinedReader(recipe, vocabulary)
    if vocabulary.processor is None:
        return TextReader(recipe, vocabulary.tokenizer)
    return SignalReader(build_processor(vocabulary.processor), recipe.wide)


class JoinedReader(InputReader):
    """Reader of several named inputs for predictions about rows; the tokenizer's special tokens frame them."""

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary):
        frame = vocabulary.tokenizer.frame if vocabulary.has_text else None
        self.before, self.behind = (frame.before, frame.behind) if frame else ((), ())
        self.encoder = InputsEncoder(recipe, vocabulary, recipe.model.context_length - len(self.before + self.behind))
        self.parts = {} if recipe.wide is None else recipe.wide.parts  # type: ignore[attr-defined]

    def example(self, row: Mapping[str, Any], truth: Any) -> Example:
        fields, _ = self.noted(row, truth)
        return Example(len(fields.value.ids), 1, fields)

    def noted(self, row: Mapping[str, Any], truth: Any) -> tuple[EncodedRow, dict[str, str]]:
        read, length = self.encoder.encode(row)
        ids = np.array([*self.before, *read.ids.tolist(), *self.behind], np.int64)
        note = self.encoder.note(length, self.encoder.text) if self.encoder.text else {}
        return self._wide(EncodedRow(read._replace(ids=ids), truth), row), note

    def _wide(self, encoded: EncodedRow, row: Mapping[str, Any]) -> EncodedRow:
        """Add what the wide path reads of the inputs: dense features, then the n-grams of the text."""
        if not self.parts:
            return encoded
        values = dict(zip(self.encoder.processors, encoded.value.values, strict=True))
        read = [self._features(name, values[name], part) for name, part in self.parts.items() if part.of_values]
        features = np.concatenate([np.zeros(0, np.float32), *read]).astype(np.float32)
        features = features if len(features) else np.zeros(1, np.float32)
        texts = [bag_of(part, [text_in(row, name)]) for name, part in self.parts.items() if not part.of_values]
        return encoded._replace(features=features, bag=texts[0] if texts else Bag(np.zeros(0, np.int64), features[:0]))

    def _features(self, name: str, value: Any, part: WidePath) -> np.ndarray:
        features = self.encoder.processors[name].read_by(value, part)
        if features is None:
            raise UserError(f"wide.parts.{name}: {part.kind!r} finds no features in this input; leave it out")
        return features

    def signal(self, rows: Sequence[EncodedRow]) -> tuple[Signal, Tensor | None]:
        ids, lengths = padded([row.value.ids for row in rows])
        inputs = self.encoder.signals([row.value.values for row in rows])
        signal = Signal(ids, lengths_or_none(ids, lengths), inputs=inputs)
        return (with_bags(signal, [_joined_bag(row) for row in rows]) if self.parts else signal), None

    def change(self, batch: Batch, rng: np.random.Generator) -> Batch:
        inputs = dict(batch.input.inputs or {})
        for name, processor in self.encoder.processors.items():
            inputs[name] = processor.augmented(inputs[name], rng)[0]
        return replace(batch, signals={**batch.signals, INPUT: replace(batch.input, inputs=inputs)})

    def notes(self, examples: int) -> list[str]:
        return self.encoder.notes(examples)

    def shown(self, row: Mapping[str, Any]) -> str:
        return self.encoder.shown(row)

    def picture(self, row: Mapping[str, Any]) -> str | None:
        drawn = (processor.picture(row[name]) for name, processor in self.encoder.processors.items())
        return next((picture for picture in drawn if picture is not None), None)


def _joined_bag(row: EncodedRow) -> Bag:
    """Return the bag of a row: its dense features, then the n-grams of its text."""
    assert row.features is not None
    assert row.bag is not None
    first = len(row.features)
    ids = np.concatenate((np.arange(first), first + row.bag.ids))
    return Bag(ids, np.concatenate((row.features, row.bag.counts)))
