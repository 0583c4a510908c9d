"""Roles that tasks have, and files to read them from."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from qkv.data.records.model import Records, Role
from qkv.data.records.open import open_records
from qkv.spec.data import Data

TEXT = Role("text", "text", ("text", "sentence", "review", "comment", "content", "body"))
LABEL = Role("label", "label", ("label", "class", "stars", "sentiment", "category", "rating"))
CLASSIFY = (TEXT, LABEL)
SCORE = (TEXT, Role("number", "number", ("score", "value", "price")))
TRANSLATE = (
    Role("source", "text", ("source", "src", "input")),
    Role("target", "text", ("target", "tgt", "translation", "summary")),
)
TAG = (Role("words", "words", ("words", "tokens")), Role("tags", "tags", ("tags", "ner_tags", "labels")))
ANSWER = (
    Role("context", "text", ("context", "passage")),
    Role("question", "text", ("question", "query")),
    Role("answers", "answers", ("answers", "answer")),
)


def write(path: Path, content: str | bytes, packed: bool = False) -> str:
    """The name of the file that was written, with ``.gz`` if it is ``packed``."""
    raw = content.encode() if isinstance(content, str) else content
    path = path.with_name(path.name + ".gz") if packed else path
    path.write_bytes(gzip.compress(raw) if packed else raw)
    return str(path)


def read(source: str, roles: tuple[Role, ...], **fields: Any) -> Records:
    return open_records(Data(source=source, **fields), roles)


def in_order(row: dict[str, Any]) -> str:
    """Equal for equal rows."""
    return json.dumps(row, sort_keys=True)


def everything(records: Records) -> list[dict[str, Any]]:
    """Train and validation together, in an order that does not depend on the split."""
    return sorted(records.splits["train"] + records.splits["validation"], key=in_order)
