"""Readers of the two inputs of a row, each with its own processor or tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv.data.batching.padding import lengths_or_none, padded
from qkv.data.features.ngrams import Bag, bag_of
from qkv.data.processors.processor import build_processor
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.spec.models.wide import Features, WidePath
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import leaves
from qkv.tasks.example_task import Truncation, text_in
from qkv.tasks.inputs import with_bags, with_vectors


class EncodedPair(NamedTuple):
    """Encoded inputs of a row, and a number for the content of each: equal inputs have equal numbers.

    features: what the wide path reads of each input, features (F,) or a bag; None without one.
    """

    values: tuple[Any, Any]
    contents: tuple[int, int]
    features: tuple[Any, Any] = (None, None)


class PairInput:
    """Reader of one of two inputs, named ``name``: it encodes the values of rows and collates them."""

    name: str
    is_text = False
    wide: WidePath | None = None
    """Part of the wide path that reads this input; None if there is none."""

    def read(self, row: Mapping[str, Any]) -> Any:
        """Encode the input of a row. Raises ``Unusable`` or ``UserError``."""
        raise NotImplementedError

    def size(self, value: Any) -> int:
        """Return the number of positions of an encoded value."""
        raise NotImplementedError

    def signal(self, values: Sequence[Any]) -> Signal:
        """Collate encoded values."""
        raise NotImplementedError

    def changed(self, signal: Signal, rng: np.random.Generator) -> Signal:
        """Change training values at random; by default, return them unchanged."""
        return signal

    def shown(self, row: Mapping[str, Any]) -> str:
        """Format the input of a row as a short text."""
        raise NotImplementedError

    def picture(self, row: Mapping[str, Any]) -> str | None:
        """Render the input of a row as a small picture (data URI); None if it has none."""
        return None

    def player(self, row: Mapping[str, Any]) -> str | None:
        """Return the input of a row as a sound to play (data URI); None if it is no sound."""
        return None

    def features(self, values: Sequence[Any]) -> np.ndarray | None:
        """Return simple features (rows, F) of encoded values for a linear baseline; None if they have none."""
        return None

    def wide_features(self, row: Mapping[str, Any], value: Any) -> Any:
        """Return what the wide path reads of the input of a row, ``value`` when encoded: features (F,), or a bag."""
        raise NotImplementedError

    def notes(self, examples: int) -> list[str]:
        """Return messages about what was left out; ``examples``: number of rows."""
        return []


class ProcessorInput(PairInput):
    """Reader of an input that a processor encodes, such as images."""

    def __init__(self, name: str, vocabulary: Vocabulary):
        self.name, self.processor = name, build_processor(vocabulary.processors[name])

    def read(self, row: Mapping[str, Any]) -> Any:
        return self.processor.read(row[self.name])

    def size(self, value: Any) -> int:
        return self.processor.size(value)

    def signal(self, values: Sequence[Any]) -> Signal:
        return self.processor.signal(values)

    def changed(self, signal: Signal, rng: np.random.Generator) -> Signal:
        return self.processor.augmented(signal, rng)[0]

    def shown(self, row: Mapping[str, Any]) -> str:
        return self.processor.shown(row[self.name])

    def picture(self, row: Mapping[str, Any]) -> str | None:
        return self.processor.picture(row[self.name])

    def player(self, row: Mapping[str, Any]) -> str | None:
        return self.processor.player(row[self.name])

    def features(self, values: Sequence[Any]) -> np.ndarray | None:
        part = self.processor.strongest()
        read = (self.processor.read_by(value, Features() if part.counts else part) for value in values)
        rows = [row for row in read if row is not None]
        return np.stack(rows) if len(rows) == len(values) else None

    def wide_features(self, row: Mapping[str, Any], value: Any) -> np.ndarray:
        assert self.wide is not None
        features = self.processor.read_by(value, self.wide)
        if features is None:
            raise UserError(f"wide: {self.wide.kind!r} finds no features in the input {self.name!r}; leave wide out")
        return features

    def notes(self, examples: int) -> list[str]:
        return self.processor.notes()


class TextInput(PairInput, Truncation):
    """Reader of a text, framed by the tokenizer's special tokens and truncated to ``room`` positions."""

    is_text = True

    def __init__(self, name: str, vocabulary: Vocabulary, room: int):
        self.name, self.tokenizer = name, vocabulary.tokenizer
        Truncation.__init__(self, {name: max(0, room - self.tokenizer.frame.size)})

    def read(self, row: Mapping[str, Any]) -> Any:
        ids = self(self.tokenizer.encode(text_in(row, self.name)), self.name)
        return np.array(self.tokenizer.frame.around(ids.tolist()).ids, np.int64)

    def size(self, value: Any) -> int:
        return len(value)

    def signal(self, values: Sequence[Any]) -> Signal:
        ids, lengths = padded(list(values))
        return Signal(ids, lengths_or_none(ids, lengths))

    def shown(self, row: Mapping[str, Any]) -> str:
        return str(row[self.name])

    def wide_features(self, row: Mapping[str, Any], value: Any) -> Bag:
        assert self.wide is not None
        return bag_of(self.wide, [text_in(row, self.name)])

    def notes(self, examples: int) -> list[str]:
        return Truncation.notes(self, examples)


class PairInputs(NamedTuple):
    """Readers of both inputs: the encoder reads ``first``, the model's blocks read ``second``."""

    first: PairInput
    second: PairInput

    def read(self, row: Mapping[str, Any]) -> EncodedPair:
        """Encode both inputs of a row. Raises ``Unusable`` or ``UserError``."""
        first, second = (entry.read(row) for entry in self)
        contents = content_of(first), content_of(second)
        if self.first.wide is None or self.second.wide is None:
            return EncodedPair((first, second), contents)
        features = self.first.wide_features(row, first), self.second.wide_features(row, second)
        return EncodedPair((first, second), contents, features)

    def notes(self, examples: int) -> list[str]:
        """Return messages of both readers."""
        return [note for entry in self for note in entry.notes(examples)]


def pair_inputs_of(recipe: Recipe, vocabulary: Vocabulary) -> PairInputs:
    """Build the readers of both inputs of a run."""
    encoder, model = recipe.model.encoder, recipe.model
    assert encoder is not None
    first, second = recipe.data.inputs
    lengths = (encoder.context_length, model.context_length)
    inputs = PairInputs(
        *(
            ProcessorInput(name, vocabulary) if name in vocabulary.processors else TextInput(name, vocabulary, room)
            for name, room in zip((first, second), lengths, strict=True)
        )
    )
    if recipe.wide is not None:
        inputs.first.wide, inputs.second.wide = recipe.wide.sides
    return inputs


def with_wide(signal: Signal, features: Sequence[Any]) -> Signal:
    """Return ``signal`` with what the wide path reads of its rows; unchanged without features."""
    if not features or features[0] is None:
        return signal
    return with_bags(signal, features) if isinstance(features[0], Bag) else with_vectors(signal, features)


def content_of(value: Any) -> int:
    """Return a number of 62 bits for an encoded value; equal values have equal numbers."""
    total = hashlib.blake2b(digest_size=8)
    for leaf in leaves(value):
        total.update(leaf.tobytes() if isinstance(leaf, np.ndarray) else repr(leaf).encode())
    return int.from_bytes(total.digest(), "little") >> 2
