"""Rewriting of JSON schemas to a form that can be enforced token by token.

A schema is rewritten before it is compiled:

- Objects that name ``properties`` are closed (no other properties are allowed), unless they constrain other properties
  (``additionalProperties``, ``unevaluatedProperties``); else a model would go on inventing keys. Subschemas of one
  object (``allOf``, a reference or ``anyOf`` beside properties) are closed together.
- A definition gets two rewritten forms where needed: closed for references that describe a whole object, and open for
  references that describe a part of another object. References that lead only back to themselves allow any JSON.
- Keywords that cannot be enforced by restricting the next token, such as ``uniqueItems``, are left out and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from qkv.system.errors import UserError

Schema = dict[str, Any]
_ABSENT = frozenset({"uniqueItems", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"}) | {
    *("dependencies", "contains", "minContains", "maxContains", "propertyNames", "unevaluatedItems"),
    *("$dynamicRef", "$recursiveRef", "nullable"),
}
"""Keywords that are not enforced."""
_NEUTRAL = {"uniqueItems": False, "nullable": False, "dependentRequired": {}, "dependentSchemas": {}}
"""Unenforced keywords by name -> value with which the keyword allows everything, so that it need not be reported."""
_SILENT = frozenset({"$schema", "$id", "id", "$anchor", "$comment", "$defs", "definitions", "$vocabulary"}) | {
    *("$dynamicAnchor", "$recursiveAnchor", "title", "description", "default", "examples", "example", "deprecated"),
    *("readOnly", "writeOnly", "contentMediaType", "contentEncoding", "contentSchema"),
    *("discriminator", "xml", "externalDocs", "unevaluatedProperties"),
}
"""Keywords that do not constrain the text, or are handled separately; they are left out without a report."""
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})


class Rewriting(NamedTuple):
    """Rewritten schema that can be enforced. dropped: keywords left out of it, with their JSON pointers."""

    schema: Schema
    dropped: tuple[str, ...]


def rewrite(schema: Schema, works: Callable[[Schema], bool], open_objects: bool = False) -> Rewriting:
    """Rewrite a schema by the rules of this module. ``works``: function (schema of a string with a ``pattern``) -> True
    if it can be enforced.

    open_objects: do not close objects only because they name ``properties``. Raises ``UserError`` for references
    without a target, for a schema that is nested too deeply, and for a schema that only infinite JSON matches.
    """
    try:
        return _Rewriter(schema, works, not open_objects).result()
    except RecursionError:
        raise UserError("the JSON schema cannot be used: it is nested too deeply") from None


class _Rewriter:
    """Rewriter of one schema."""

    def __init__(self, root: Schema, works: Callable[[Schema], bool], closes: bool):
        self._root, self._works, self._closes = root, works, closes
        self._names: dict[tuple[str, bool], str] = {}
        self._definitions: Schema = {}
        self._dropped: dict[str, None] = {}

    def result(self) -> Rewriting:
        """Rewrite the whole schema."""
        schema = self._value(self._root, "#", True)
        if not _is_finite(schema, _finite(self._definitions)):
            raise UserError(
                "the JSON schema cannot be used: it requires itself within itself, so that only infinite JSON would "
                "match; leave the recursive property out of 'required', or allow null"
            )
        definitions = {"$defs": self._definitions} if self._definitions else {}
        return Rewriting({**schema, **definitions}, tuple(self._dropped))

    def _value(self, schema: Any, place: str, closing: bool) -> Any:
        """Rewrite a schema. ``closing``: no other schema describes the same value, so its objects can be closed."""
        if not isinstance(schema, dict):
            return schema
        rest = {key: each for key, each in schema.items() if not self._is_left_out(key, each, schema, place)}
        parts = rest.get("allOf")
        if rest.keys() == {"allOf"} and isinstance(parts, list) and len(parts) == 1:
            return self._value(parts[0], f"{place}/allOf/0", closing)
        if rest.keys() == {"$ref"}:
            return self._reference(rest["$ref"], place, closing)
        whole = closing and self._is_whole(schema, rest)
        result = {key: self._keyword(key, each, place, closing and not whole) for key, each in rest.items()}
        if "$ref" in result:  # beside other keywords
            result["allOf"] = [result.pop("$ref"), *result.get("allOf", [])]
        return self._closed(result, list(self._parts(schema, place, set()))) if whole else result

    def _is_whole(self, schema: Schema, rest: Schema) -> bool:
        """Return whether an object is closed as a whole, and not separately within each alternative of ``anyOf``."""
        return "unevaluatedProperties" in schema or not rest.keys().isdisjoint({"properties", "allOf", "$ref"})

    def _closed(self, schema: Schema, parts: list[Schema]) -> Schema:
        """Close an object: allow only properties that its parts name or that it requires. Return ``schema`` unchanged
        if a part constrains other properties itself, or if nothing calls for closing.
        """
        shut = parts[0].get("unevaluatedProperties") is False
        explicit = any("additionalProperties" in each or each.get("unevaluatedProperties", False) for each in parts)
        named = [each["properties"] for each in parts if isinstance(each.get("properties"), dict)]
        if explicit or not (shut or (named and self._closes)):
            return schema
        patterns = [each["patternProperties"] for each in parts if isinstance(each.get("patternProperties"), dict)]
        names = [*(name for each in named for name in each), *_texts(schema.get("required"))]
        closed = {**schema, "properties": _and_others(schema.get("properties"), names), "additionalProperties": False}
        if patterns:
            patterns_of_parts = [pattern for each in patterns for pattern in each]
            closed["patternProperties"] = _and_others(schema.get("patternProperties"), patterns_of_parts)
        return closed

    def _parts(self, schema: Any, place: str, seen: set[str]) -> Iterator[Schema]:
        """Yield a schema and all subschemas that describe the same value, each once; ``seen``: JSON pointers of the
        schemas that have been yielded.
        """
        if not isinstance(schema, dict) or place in seen:
            return
        yield schema
        seen.add(place)
        for key in ("allOf", "anyOf", "oneOf"):
            for i, each in enumerate(schema[key] if isinstance(schema.get(key), list) else ()):
                yield from self._parts(each, f"{place}/{key}/{i}", seen)
        if isinstance(schema.get("$ref"), str):
            yield from self._parts(*self._target(schema["$ref"], place), seen)

    def _keyword(self, key: str, value: Any, place: str, closing: bool) -> Any:
        """Rewrite the value of a keyword. closing: close each alternative and each reference separately."""
        inner = f"{place}/{_quoted(key)}"
        if key == "$ref":
            return self._reference(value, place, closing)
        if isinstance(value, list) and key in ("allOf", "anyOf", "oneOf", "prefixItems", "items"):
            apart = closing if key in ("anyOf", "oneOf") else key != "allOf"
            return [self._value(each, f"{inner}/{i}", apart) for i, each in enumerate(value)]
        if isinstance(value, dict) and key in ("properties", "patternProperties"):
            return {name: self._value(each, f"{inner}/{_quoted(name)}", True) for name, each in value.items()}
        nested = key in ("items", "additionalItems", "additionalProperties")
        return self._value(value, inner, True) if nested else value

    def _is_left_out(self, key: str, value: Any, schema: Schema, place: str) -> bool:
        """Return whether to leave a keyword out of the rewritten schema; report it if the allowed JSON changes."""
        if key in ("if", "then", "else") and "if" not in schema:
            return True
        absent = key in _ABSENT and not (key in _NEUTRAL and value == _NEUTRAL[key])
        unusable = absent or self._is_unusable(key, value, schema)
        if unusable:
            self._name(f"{key} {_quoted(value)}" if key == "format" else key, place)
        return unusable or key in _SILENT or key in _ABSENT or key.startswith("x-")

    def _is_unusable(self, key: str, value: Any, schema: Schema) -> bool:
        """Return whether a keyword that can be enforced in general cannot be with this value or in this schema."""
        if key == "format":
            return isinstance(value, str) and value not in _FORMATS
        if key == "unevaluatedProperties":
            return isinstance(value, dict) and bool(value)
        if key in ("minProperties", "maxProperties"):
            return not set(schema.get("properties") or ()) <= set(_texts(schema.get("required")))
        return key == "pattern" and isinstance(value, str) and not self._works({"type": "string", "pattern": value})

    def _name(self, keyword: str, place: str) -> None:
        self._dropped[f"{keyword} at {place}"] = None

    def _reference(self, pointer: Any, place: str, closing: bool) -> Schema:
        """Return a reference to the rewritten target of ``pointer``; follow chains of references to their end."""
        target, where = self._target(pointer, place)
        passed = {where}
        while isinstance(target, dict) and target.keys() - _SILENT == {"$ref"}:
            target, where = self._target(target["$ref"], where)
            if where in passed:
                self._name("$ref", place)
                return {}
            passed.add(where)
        key = (where, closing)
        if key not in self._names:
            self._names[key] = name = str(len(self._names))
            self._definitions[name] = None  # reserve the name while the target is rewritten
            self._definitions[name] = self._value(target, where, closing)
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _target(self, pointer: Any, place: str) -> tuple[Any, str]:
        """Return (schema, JSON pointer) of the target of a reference."""
        base, _, fragment = str(pointer).partition("#")
        target, where = self._places.get(base or "#") or self._missing(pointer, place)
        if fragment and not fragment.startswith("/"):
            return self._places.get(f"{base}#{fragment}") or self._missing(pointer, place)
        for step in fragment.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            inner: Any = dict(enumerate(target)) if isinstance(target, list) else target
            index = int(key) if isinstance(target, list) and key.isdecimal() else key
            if not isinstance(inner, dict) or index not in inner:
                return self._missing(pointer, place)
            target, where = inner[index], f"{where}/{_quoted(key)}"
        return target, where

    def _missing(self, pointer: Any, place: str) -> tuple[Any, str]:
        raise UserError(
            f"the JSON schema cannot be used: its $ref {pointer!r} at {place} has no target within the schema"
        )

    @cached_property
    def _places(self) -> dict[str, tuple[Any, str]]:
        """Targets of references, (schema, JSON pointer), by reference: the root, each ``$id`` and each ``$anchor``."""
        targets: dict[str, tuple[Any, str]] = {"#": (self._root, "#")}
        waiting: list[tuple[Any, str, str]] = [(self._root, "#", "")]
        while waiting:
            each, place, base = waiting.pop()
            inner = enumerate(each) if isinstance(each, list) else each.items() if isinstance(each, dict) else ()
            if isinstance(each, dict):
                identity = each.get("$id")
                base = identity.partition("#")[0] if isinstance(identity, str) else base
                targets.setdefault(base or "#", (each, place))
                for kind in ("$anchor", "$dynamicAnchor"):
                    if isinstance(each.get(kind), str):
                        targets[f"{base}#{each[kind]}"] = targets[f"#{each[kind]}"] = (each, place)
            waiting += [(one, f"{place}/{_quoted(str(key))}", base) for key, one in inner]
        return targets


def _finite(definitions: Schema) -> frozenset[str]:
    """Return references to the definitions that JSON of finite length can match, found by fixed-point iteration."""
    references = frozenset[str]()
    while True:
        more = frozenset(f"#/$defs/{name}" for name, each in definitions.items() if _is_finite(each, references))
        if more == references:
            return references
        references = more


def _is_finite(schema: Any, references: frozenset[str]) -> bool:
    """Return whether JSON of finite length can match ``schema``. ``references``: references with finite matches."""
    if not isinstance(schema, dict) or "enum" in schema or "const" in schema:
        return True
    if "$ref" in schema and schema["$ref"] not in references:
        return False
    several = {key: schema[key] for key in ("allOf", "anyOf", "oneOf") if isinstance(schema.get(key), list)}
    if not all(
        (all if key == "allOf" else any)(_is_finite(each, references) for each in several[key]) for key in several
    ):
        return False
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    inner = {"object": _of_object, "array": _of_array}
    return any(kind not in inner or all(_is_finite(each, references) for each in inner[kind](schema)) for kind in kinds)


def _of_object(schema: Schema) -> list[Any]:
    """Return the schemas of the properties that an object must have."""
    properties = schema.get("properties")
    schemas = properties if isinstance(properties, dict) else {}
    return [schemas.get(name, schema.get("additionalProperties")) for name in _texts(schema.get("required"))]


def _of_array(schema: Schema) -> list[Any]:
    """Return the schemas of the items that an array must have."""
    least, first, items = schema.get("minItems", 0), schema.get("prefixItems", []), schema.get("items")
    first = items if isinstance(items, list) else first
    needed = least if isinstance(least, int) else 0
    schemas = list(first[:needed]) if isinstance(first, list) else []
    return schemas + ([items] if needed > len(schemas) and isinstance(items, dict) else [])


def _and_others(properties: Any, names: list[str]) -> Schema:
    """Return ``properties`` with the missing ``names`` added, each with a schema that allows any value."""
    allowed = properties if isinstance(properties, dict) else {}
    return {**allowed, **{name: True for name in names if name not in allowed}}


def _texts(value: Any) -> list[str]:
    """Return the strings in a list; an empty list if ``value`` is not a list."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _quoted(key: str) -> str:
    """Escape a key for use in a JSON pointer, in ASCII."""
    return quote(key.replace("~", "~0").replace("/", "~1"), safe="~$")
