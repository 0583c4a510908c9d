"""Pictures in conversations, for models with named inputs: their placeholder ids, and their values in batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, count
from typing import Any, NamedTuple

import numpy as np

from qkv.data.records.conversations.contents import STORED, Picture, content_of
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.named_inputs import InputsEncoder
from qkv.tokenizers.chat_template import place_mark, unmarked


class ReadPicture(NamedTuple):
    """Picture that was read: name of the model's input, encoded value, number of placeholder ids."""

    name: str
    value: Any
    places: int


class PictureReader:
    """Reader that assigns the pictures of a chat to the model's picture inputs.

    A single picture input takes all pictures. Several picture inputs take one each, in the order of the recipe's data.
    """

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary, room: int | None = None):
        """Create the reader. ``room``: most positions of all pictures of a chat; None: the context length."""
        self.encoder = InputsEncoder(recipe, vocabulary, room or recipe.model.context_length)
        self.names = [name for name, each in recipe.data.processors.items() if each.of_images]

    def names_of(self, count: int) -> list[str]:
        """Return the name of the input of each of ``count`` pictures. Raises ``UserError`` for another number than
        several inputs take, and for more than the context has room for.
        """
        names = self.names * count if len(self.names) == 1 else self.names
        if len(names) != count:
            raise UserError(f"messages: {count} pictures given; the model needs one each for {', '.join(names)}")
        size, room = sum(self.encoder.frontends[name].num_positions or 1 for name in names), self.encoder.room
        if size > room:
            raise UserError(
                f"messages: {count} pictures of {size:,} positions given, but the context has room for {room:,}"
            )
        return names

    def read(self, pictures: Sequence[str]) -> tuple[list[list[int]], Mapping[str, Signal]]:
        """Read pictures, given as data URIs or names of files; return (placeholder ids of each, signals by name of the
        input).

        Raises ``UserError``, see ``names_of``, and for a damaged picture.
        """
        spans, values = self.spans(pictures)
        return spans, self.signals(values)

    def spans(self, pictures: Sequence[str]) -> tuple[list[list[int]], list[ReadPicture]]:
        """Read pictures; return (ids that stand for each, with the words between its placeholders, what was read). See
        ``read`` for what is raised.
        """
        names = self.names_of(len(pictures))
        values = [(name, self._value(name, each)) for name, each in zip(names, pictures, strict=True)]
        spans = [self.encoder.span(name, value) for name, value in values]
        counts = [sum(index < 0 for index in span) for span in spans]
        return spans, [ReadPicture(*value, places) for value, places in zip(values, counts, strict=True)]

    def signals(self, pictures: Sequence[ReadPicture]) -> dict[str, Signal]:
        """Collate pictures, in the order of their placeholders, to one signal per input, by name."""
        return {
            name: self.encoder.processors[name].signal([each.value for each in pictures if each.name == name])
            for name in dict.fromkeys(each.name for each in pictures)
        }

    def check(self, picture: str) -> None:
        """Raise ``UserError`` for a picture that cannot be read."""
        self._value(self.names[0], picture)

    def _value(self, name: str, picture: str) -> Any:
        try:
            return self.encoder.processors[name].read(picture)
        except Unusable as error:
            raise UserError(f"messages: {error}") from None


def reader_of_pictures(recipe: Recipe, vocabulary: Vocabulary, room: int | None = None) -> PictureReader | None:
    """Return the reader of the pictures of chats; None if no named input of the recipe is a picture."""
    named = bool(recipe.data.inputs) and any(each.of_images for each in recipe.data.processors.values())
    return PictureReader(recipe, vocabulary, room) if named else None


def whole_pictures(ids: np.ndarray, limit: int, pictures: Sequence[ReadPicture]) -> tuple[int, Sequence[ReadPicture]]:
    """Return (number of ids, at most ``limit``, the pictures in them), so that the ids before the last one, which a
    model reads, divide no picture.
    """
    places, ends = np.flatnonzero(ids < 0).tolist(), [0, *accumulate(each.places for each in pictures)]
    for number in range(len(pictures), 0, -1):
        room = min(limit, *places[ends[number] : ends[number] + 1], len(ids))
        if places[ends[number] - 1] < room - 1:
            return room, pictures[:number]
    return min(limit, *places[:1], len(ids)), ()


def marked(content: Any, first: int = 0) -> str:
    """Return a content of ``content_of`` as one text, with a marker in place of each picture. ``first``: number of its
    first picture.
    """
    if not isinstance(content, tuple):
        return unmarked(content or "")
    numbers = count(first)
    return "".join(place_mark(next(numbers)) if isinstance(piece, Picture) else unmarked(piece) for piece in content)


def marked_messages(messages: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return (messages with texts that have a numbered marker in place of each picture, the pictures in order)."""
    messages = list(messages)
    contents = [content_of(message.get("content"), STORED) for message in messages]
    pictures = [[each.value for each in content or () if isinstance(each, Picture)] for content in contents]
    firsts = accumulate(map(len, pictures), initial=0)
    texts = [marked(content, first) for content, first in zip(contents, firsts, strict=False)]
    rows = [{**message, "content": text} for message, text in zip(messages, texts, strict=True)]
    return rows, [each for some in pictures for each in some]
