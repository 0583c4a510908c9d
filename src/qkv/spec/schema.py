"""The JSON schema of a recipe or a model, with which editors complete and check a YAML file."""

from __future__ import annotations

from typing import Any, cast

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from qkv.spec.base import Part, Spec
from qkv.spec.plain import plain

Node = dict[str, Any]


def json_schema(top: type[Spec]) -> Node:
    """JSON Schema (2020-12) of ``top`` with every slot as a definition that lists its registered parts.

    It holds for each value by itself; what one field asks of another (heads that divide the width) is left to ``top.parse``.
    """
    definitions: Node = {}
    schema = _resolved(_generated(top), definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": {**schema.get("$defs", {}), **definitions}}


class _Generator(GenerateJsonSchema):
    """Pydantic's own, but defaults are written as a person would write them, and a key's name is title enough."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        found = super().default_schema(schema)
        default: Any = schema.get("default")
        if "default" in found and isinstance(default, (Spec, tuple)):
            choices: list[Node] = [found, found.get("items", {}), *found.get("anyOf", [])]
            found["default"] = plain(default, in_slot=any("x-slot" in choice for choice in choices))
        return found

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _generated(spec: type[Spec]) -> Node:
    return TypeAdapter(spec).json_schema(schema_generator=_Generator)


def _resolved(node: Any, definitions: Node) -> Any:
    """``node`` with each slot marker replaced by a reference; the slots met are added to ``definitions``."""
    if isinstance(node, list):
        return [_resolved(item, definitions) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    fields = cast("Node", node)
    if "x-slot" not in fields:
        return {key: _resolved(value, definitions) for key, value in fields.items()}
    name = fields["x-slot"]
    if name not in definitions:
        definitions[name] = {}  # stands in while the slot's own parts, which may hold the slot again, are read
        definitions[name] = _slot_schema(_slots()[name], definitions)
    rest = {key: value for key, value in fields.items() if key != "x-slot"}
    return {"$ref": f"#/$defs/{name}", **rest}


def _slot_schema(slot: type[Part], definitions: Node) -> Node:
    choices = _short_forms(slot)
    for kind in sorted(slot.kinds()):
        fields = _resolved(_generated(slot.kinds()[kind]), definitions)
        definitions.update(fields.pop("$defs", {}))
        fields["properties"] = {"kind": {"const": kind}, **fields.get("properties", {})}
        fields["required"] = ["kind", *fields.get("required", [])]
        choices.append(fields)
    return {"description": slot.__doc__ or "", "anyOf": choices}


def _short_forms(slot: type[Part]) -> list[Node]:
    """A slot as text: kinds that stand alone, which an editor offers, and the form with values."""
    kinds = sorted(slot.kinds())
    bare = [kind for kind in kinds if not any(field.is_required() for field in slot.kinds()[kind].model_fields.values())]
    if "short_form" in vars(slot):
        return [{"type": "string", "description": "an expression of " + ", ".join(kinds), "examples": bare}]
    form = {"type": "string", "pattern": rf"^\s*({'|'.join(kinds)})\s*\(.*\)\s*$", "description": "kind(value, name=value)"}
    return [{"enum": bare}, form] if bare else [form]


def _slots() -> dict[str, type[Part]]:
    return {slot.__name__: slot for slot in Part.__subclasses__()}
