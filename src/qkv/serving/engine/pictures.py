"""Pictures in chat messages, for models with named inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.named_inputs import InputsEncoder


class PictureReader:
    """Reader that assigns the pictures of a chat to the model's picture inputs.

    A single picture input takes all pictures. Several picture inputs take one each, in the order of the recipe's data.
    """

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary):
        self.encoder = InputsEncoder(recipe, vocabulary, recipe.model.context_length)
        self.names = [name for name, each in recipe.data.processors.items() if each.of_images]

    def read(self, uris: Sequence[str]) -> tuple[list[list[int]], Mapping[str, Signal]]:
        """Read pictures, given as data URIs; return (placeholder ids of each, signals by name of the input).

        Raises ``UserError`` for a damaged picture, and for another number of pictures than several inputs take.
        """
        names = self.names * len(uris) if len(self.names) == 1 else self.names
        if len(names) != len(uris):
            raise UserError(f"messages: {len(uris)} pictures given; the model needs one each for {', '.join(names)}")
        values = [(name, self._value(name, uri)) for name, uri in zip(names, uris, strict=True)]
        signals = {
            name: self.encoder.processors[name].signal([value for other, value in values if other == name])
            for name in dict.fromkeys(names)
        }
        return [self.encoder.span(name, value) for name, value in values], signals

    def _value(self, name: str, uri: str) -> Any:
        try:
            return self.encoder.processors[name].read(uri)
        except Unusable as error:
            raise UserError(f"messages: {error}") from None
