"""Contents of messages: a text, or a list of parts that are texts and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from qkv.data.records.images.pictures import URI, as_uri, is_picture
from qkv.system.errors import quoted

TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Type of each part that is a text -> key of its text."""
ADDRESSES: Mapping[str, Sequence[str]] = {"image_url": ("image_url",), "input_image": ("image_url",)}
"""Type of each part that is a picture in OpenAI's form -> key of its address."""
STORED: Mapping[str, Sequence[str]] = {**ADDRESSES, "image": ("image", "path", "url", "image_url")}
"""Type of each part that is a picture in files of chats and in Python -> keys of which one holds the picture."""
_FILE = "file://"


class Picture(NamedTuple):
    """Picture in the content of a message. value: data URI, or name of a file."""

    value: str


def content_of(value: Any, pictures: Mapping[str, Sequence[str]] = ADDRESSES) -> Any:
    """Return the content of a message: a text, None, or its texts and pictures in order. ``pictures``: types of parts
    that are pictures, with their keys. Raises ``ValueError``.
    """
    if not isinstance(value, list):
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{quoted(value)} given; allowed: a text, or a list of parts")
        return value
    pieces = tuple(_piece(part, pictures) for part in value)
    return pieces if any(isinstance(piece, Picture) for piece in pieces) else "".join(map(str, pieces))


def text_of(value: Any) -> Any:
    """Return the content of a message as one text: text parts are joined, other parts are refused."""
    return content_of(value, {}) if isinstance(value, list) else value


def with_pictures(text: str, pictures: Sequence[Any]) -> Any:
    """Return the content of a message with ``pictures``, as data URIs, files or in memory, before its text.

    Raises ``ValueError``.
    """
    parts = [*({"type": "image", "image": each} for each in pictures), {"type": "text", "text": text}]
    return parts_of(content_of(parts, STORED))


def parts_of(content: Any) -> Any:
    """Return a content of ``content_of`` as plain data in OpenAI's form."""
    if content is None or isinstance(content, str):
        return content
    return [
        {"type": "image_url", "image_url": {"url": piece.value}}
        if isinstance(piece, Picture)
        else {"type": "text", "text": piece}
        for piece in content
    ]


def pictures_of(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the pictures of messages that were read, in order."""
    contents = [message["content"] for message in messages if isinstance(message["content"], list)]
    return [piece.value for content in contents for piece in content_of(content, STORED) if isinstance(piece, Picture)]


def with_files(value: Any, folder: Path) -> Any:
    """Return messages, or their JSON, whose pictures are named by their place in ``folder`` where a file is there."""
    if isinstance(value, str) and any(kind in value for kind in STORED):
        try:
            read = json.loads(value)
        except (ValueError, RecursionError):
            return value
        placed = read if isinstance(read, str) else with_files(read, folder)
        return value if placed == read else json.dumps(placed)
    if isinstance(value, Mapping):
        kind = value.get("type")
        keys = STORED[kind] if isinstance(kind, str) and kind in STORED else ()
        return {key: _placed(each, folder) if key in keys else with_files(each, folder) for key, each in value.items()}
    return [with_files(each, folder) for each in value] if isinstance(value, list) else value


def _placed(value: Any, folder: Path) -> Any:
    """Return the name of a file of a picture, or the object with it, by its place in ``folder``."""
    if isinstance(value, Mapping):
        return {**value, "url": _placed(value.get("url"), folder)}
    if not isinstance(value, str) or value.startswith((URI, "data:")) or "://" in value:
        return value
    beside = folder / value.strip()
    return str(beside) if beside.is_file() else value


def shown_text(content: Any) -> str:
    """Return the text of a content; each picture is "[picture]"."""
    pieces = content_of(content, STORED) or ""
    if isinstance(pieces, str):
        return pieces
    return " ".join("[picture]" if isinstance(piece, Picture) else piece for piece in pieces if piece)


def _piece(part: Any, pictures: Mapping[str, Sequence[str]]) -> str | Picture:
    kind = part.get("type") if isinstance(part, Mapping) else part
    if isinstance(part, Mapping) and isinstance(kind, str) and kind in pictures:
        return _picture(next((part[key] for key in pictures[kind] if part.get(key) is not None), None))
    text = part.get(TEXTS[kind]) if isinstance(part, Mapping) and isinstance(kind, str) and kind in TEXTS else None
    if not isinstance(text, str):
        raise ValueError(f"a part of the type {quoted(kind)} given; allowed: {', '.join(TEXTS)}, with a text")
    return text


def _picture(value: Any) -> Picture:
    """Return the picture at an address, in a file or in memory, which becomes a data URI. Raises ``ValueError``."""
    value = value.get("url") if isinstance(value, Mapping) else value
    if is_picture(value):
        return Picture(as_uri(value))
    name = str(value) if hasattr(value, "__fspath__") else value
    if not isinstance(name, str) or not name:
        raise ValueError(f"{quoted(value)} given; allowed: an image as {URI}png;base64,…")
    if name.startswith(_FILE):
        name = unquote(name.removeprefix(_FILE))
    elif "://" in name:
        raise ValueError(f"{quoted(name)} given, but no address is fetched; allowed: an image as {URI}png;base64,…")
    if name.startswith("data:") and not name.startswith(URI):
        raise ValueError(f"{quoted(name)} given; allowed: an image as {URI}png;base64,…")
    return Picture(name)
