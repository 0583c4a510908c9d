"""Structured outputs: request parameters that constrain the generated text.

``response_format`` is OpenAI's; ``guided_json``, ``guided_regex``, ``guided_choice`` and ``structured_outputs`` are
parameters of other servers, which their clients send.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from typing import Any, Literal, NamedTuple

from qkv.generation.logits.constrain import Constraint
from qkv.serving.limits import COMPILED
from qkv.system.errors import nearest, quoted
from qkv.tokenizers.tokenizer import Tokenizer

_META = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~]")


class Structure(NamedTuple):
    """Constraint of an answer: a regular expression, a JSON schema as text, or the JSON of a sequence of parts. name:
    request parameter that sets it.
    """

    kind: Literal["regex", "json_schema", "sequence"]
    text: str
    name: str


def _schema(schema: Any, name: str) -> Structure:
    """Build the structure of a JSON schema, given as an object or as its text."""
    return Structure("json_schema", schema if isinstance(schema, str) else json.dumps(schema), name)


def response_format(value: Any) -> Structure | None:
    """Read ``response_format``: ``text``, ``json_object`` or ``json_schema``. A schema is enforced whether or not it is
    ``strict``.

    Raises ``ValueError``.
    """
    if value is None or isinstance(value, Structure):  # already converted
        return value
    kinds, kind = ("text", "json_object", "json_schema"), value.get("type") if isinstance(value, dict) else None
    if kind not in kinds or value.keys() - {"type", "json_schema"}:
        raise ValueError(f'{quoted(value)} given; allowed: {{"type": "…"}} with {", ".join(kinds)}')
    if kind != "json_schema":
        return None if kind == "text" else _schema({"type": "object"}, "response_format")
    inner = value.get("json_schema")
    if not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict):
        raise ValueError("'json_schema' given without a schema; it needs the object json_schema.schema beside it")
    if unknown := inner.keys() - {"name", "description", "schema", "strict"}:
        raise ValueError(f"'json_schema' has the key {min(unknown)!r}; {nearest(min(unknown), ('schema', 'strict'))}")
    return _schema(inner["schema"], "response_format")


def guided_json(value: Any, name: str = "guided_json") -> Structure | None:
    """Read a JSON schema, given as an object or as its text. Raises ``ValueError``."""
    if value is None or isinstance(value, Structure):
        return value
    if not isinstance(value, (dict, str)):
        raise ValueError(f"{quoted(value)} given; allowed: a JSON schema, an object or its text")
    return _schema(value, name)


def guided_regex(value: Any, name: str = "guided_regex") -> Structure | None:
    """Read a regular expression. Raises ``ValueError``."""
    if value is None or isinstance(value, Structure):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{quoted(value)} given; allowed: a regular expression")
    return Structure("regex", value, name)


def guided_choice(value: Any, name: str = "guided_choice") -> Structure | None:
    """Read a list of texts; the answer must be one of them. Raises ``ValueError``."""
    if value is None or isinstance(value, Structure):
        return value
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise ValueError(f"{quoted(value)} given; allowed: a list of texts")
    return Structure("regex", "|".join(_META.sub(r"\\\g<0>", each) for each in value), name)


def structured_outputs(value: Any) -> Structure | None:
    """Read ``structured_outputs``: one of ``json``, ``regex``, ``choice``, ``json_object``. Raises ``ValueError``."""
    if value is None or isinstance(value, Structure):
        return value
    pairs = [(key, each) for key, each in value.items() if each is not None] if isinstance(value, dict) else []
    if len(pairs) != 1 or pairs[0][0] not in ("json", "regex", "choice", "json_object"):
        raise ValueError(f"{quoted(value)} given; allowed: an object with one of json, regex, choice, json_object")
    ((kind, content),) = pairs
    if kind == "json_object":
        return _schema({"type": "object"}, "structured_outputs") if content else None
    read = {"json": guided_json, "regex": guided_regex, "choice": guided_choice}[kind]
    return read(content, "structured_outputs")


class Constraints:
    """LRU cache of one model's compiled constraints, at most ``COMPILED``. Constraints are compiled one at a time."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self._lock = tokenizer, threading.Lock()
        self._known: OrderedDict[tuple[str, str], Constraint] = OrderedDict()

    def of(self, structure: Structure) -> Constraint:
        """Compile a structure, or return its cached ``Constraint``. Raises ``UserError``.

        Compilation takes up to a second, so this must not be called in the event loop.
        """
        key = (structure.kind, structure.text)
        with self._lock:
            form: dict[str, Any] = {structure.kind: structure.text}
            constraint = self._known.pop(key, None) or Constraint(self._tokenizer, **form)
            self._known[key] = constraint
            if len(self._known) > COMPILED:
                self._known.popitem(last=False)
        return constraint
