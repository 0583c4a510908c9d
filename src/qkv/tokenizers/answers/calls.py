"""Tool calls in answers of models: the base class of the forms in which models write them, and their register.

A form is an entry of ``CALLS``, in a module of ``qkv.tokenizers.answers.forms``. Which form a model uses is found by
rendering a call with its chat template, see ``qkv.tokenizers.answers.form``.
"""

from __future__ import annotations

import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from qkv.spec.register import Register

Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schema of the arguments of each function, by its name."""
Call = tuple[str, Any]
"""Name of a function and its arguments: an object, or text that is not valid JSON."""


class ToolCall(NamedTuple):
    """Call of a function; arguments: JSON as text."""

    id: str
    name: str
    arguments: str

    def to_dict(self) -> dict[str, Any]:
        """Return the call in OpenAI's form."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


class Demand(NamedTuple):
    """Constraint of a text that is one call. kind: ``json_schema``, or ``sequence``, see
    ``qkv.generation.logits.sequence``. tree: JSON schema, or alternatives of parts.
    """

    kind: Literal["json_schema", "sequence"]
    tree: Any


class CallForm(ABC):
    """Form in which a model writes tool calls.

    name: key in ``CALLS``. begin, end: texts around the calls; without ``end`` they go on to the end of the answer.
    starts: if ``begin`` is empty, texts with which an answer begins that is calls as a whole. gap: white space after
    ``begin``. short_ids: ids of calls have nine letters and digits, which the templates of Mistral demand.
    """

    name: str
    begin: str
    end: str
    starts: tuple[str, ...] = ()
    gap: str = ""
    short_ids: bool = False

    @abstractmethod
    def read(self, text: str, schemas: Schemas) -> list[Call]:
        """Parse the text between ``begin`` and ``end``. Raises ``ValueError`` for a text that is no call."""

    @abstractmethod
    def write(self, calls: Sequence[Call]) -> str:
        """Return the text of calls, with ``begin`` and ``end``."""

    @abstractmethod
    def demand(self, schemas: Schemas) -> Demand:
        """Return the constraint of the text after ``begin`` and ``gap``: one call of any of the functions."""

    def new_id(self) -> str:
        """Return a new id of a call."""
        if not self.short_ids:
            return f"call_{secrets.token_hex(12)}"
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


CALLS: Register[str, CallForm] = Register("qkv.tokenizers.answers.forms")
"""Forms of tool calls by name."""
F = TypeVar("F", bound=CallForm)


def register(form: F) -> F:
    """Add a form to ``CALLS``, and return it."""
    CALLS[form.name] = form
    return form


def arguments_schema(parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the schema of a function's arguments; without ``parameters``, only an empty object is allowed."""
    schema = parameters or {}
    says = schema.keys() - {"type", "title", "description", "$schema"} or schema.get("type", "object") != "object"
    return schema if says else {"type": "object", "properties": {}, "additionalProperties": False}


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the schema of the arguments of each tool, in OpenAI's form, by the name of its function."""
    functions = [tool.get("function", tool) for tool in tools]
    return {function["name"]: arguments_schema(function.get("parameters")) for function in functions}


def properties(schema: Mapping[str, Any]) -> list[tuple[str, dict[str, Any], bool]]:
    """Return (name, schema, required) of each property, the required ones first. References to the definitions of
    ``schema`` stay valid, because they are copied.
    """
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    needed = schema.get("required", ())
    named = [(name, {**shared, **part}, name in needed) for name, part in schema.get("properties", {}).items()]
    return sorted(named, key=lambda each: not each[2])


def argument_parts(
    schema: Mapping[str, Any],
    between: str,
    equals: str,
    value: Callable[[Mapping[str, Any]], list[Any]] = lambda each: [{"schema": each}],
) -> list[Any]:
    """Return the parts of named arguments: the required ones, then the optional ones; all of them if none is required.

    between, equals: texts between two arguments, and between a name and its value. value: function that returns the
    parts of a value from its schema; default: JSON.
    """
    named = properties(schema)
    parts = list[Any]()
    for place, (key, each, needed) in enumerate(named):
        one = [f"{between if place else ''}{key}{equals}", *value(each)]
        parts += one if needed or not named[0][2] else [{"maybe": one}]
    return parts


def text_parts(schema: Mapping[str, Any], end: str) -> list[Any] | None:
    """Return the parts of a string that is written plainly before ``end``, which is included: any text, or one of the
    strings that the schema names. None if the schema allows other values.
    """
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if values and all(isinstance(each, str) for each in values):
        return [{"any": values}, end]
    return [{"until": end}] if schema.get("type") == "string" and not values else None
