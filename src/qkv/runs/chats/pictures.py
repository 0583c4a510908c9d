"""Pictures in chats, for models with named inputs."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import accumulate, count
from pathlib import Path
from typing import Any

from qkv.data.records.conversations.contents import STORED, Picture, content_of
from qkv.data.records.images.image_files import opened_image
from qkv.data.records.images.pictures import URI
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.runs.run import Run
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.named_inputs import InputsEncoder
from qkv.tokenizers.chat_template import place_mark, unmarked


class PictureReader:
    """Reader that assigns the pictures of a chat to the model's picture inputs.

    A single picture input takes all pictures. Several picture inputs take one each, in the order of the recipe's data.
    """

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary):
        self.encoder = InputsEncoder(recipe, vocabulary, recipe.model.context_length)
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
        names = self.names_of(len(pictures))
        values = [(name, self._value(name, each)) for name, each in zip(names, pictures, strict=True)]
        signals = {
            name: self.encoder.processors[name].signal([value for other, value in values if other == name])
            for name in dict.fromkeys(names)
        }
        return [self.encoder.span(name, value) for name, value in values], signals

    def check(self, picture: str) -> None:
        """Raise ``UserError`` for a picture that cannot be read."""
        self._value(self.names[0], picture)

    def _value(self, name: str, picture: str) -> Any:
        try:
            return self.encoder.processors[name].read(picture)
        except Unusable as error:
            raise UserError(f"messages: {error}") from None


def picture_reader(run: Run) -> PictureReader | None:
    """Return the reader of the pictures of a run's chats; None if no named input of the run is a picture."""
    data = run.recipe.data
    named = bool(data.inputs) and any(each.of_images for each in data.processors.values())
    return PictureReader(run.recipe, run.vocabulary) if named else None


def picture_uri(path: str | Path) -> str:
    """Return the picture in a file as a data URI, with the bytes of the file. Raises ``UserError``."""
    try:
        image = opened_image(str(path))
        content = Path(path).expanduser().read_bytes()
    except Unusable as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    return f"{URI}{image.format.lower()};base64,{base64.b64encode(content).decode()}"


def marked(content: Any, first: int = 0) -> str:
    """Return a content of ``content_of`` as one text, with a marker in place of each picture. ``first``: number of its
    first picture.
    """
    if not isinstance(content, tuple):
        return unmarked(content or "")
    numbers = count(first)
    return "".join(place_mark(next(numbers)) if isinstance(piece, Picture) else unmarked(piece) for piece in content)


def marked_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return (messages with texts that have a numbered marker in place of each picture, the pictures in order)."""
    contents = [content_of(message.get("content"), STORED) for message in messages]
    pictures = [[each.value for each in content or () if isinstance(each, Picture)] for content in contents]
    firsts = accumulate(map(len, pictures), initial=0)
    texts = [marked(content, first) for content, first in zip(contents, firsts, strict=False)]
    rows = [{**message, "content": text} for message, text in zip(messages, texts, strict=True)]
    return rows, [each for some in pictures for each in some]
