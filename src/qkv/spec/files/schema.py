"""JSON schema of recipes and models, for completion and validation in editors."""

from __future__ import annotations

from typing import Any, cast

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from qkv.spec.base import Part, Spec
from qkv.spec.files.plain import plain

Node = dict[str, Any]


def json_schema(top: type[Spec]) -> Node:
    """Build the JSON Schema (2020-12) of ``top``, with a definition per slot that lists its registered parts.

    It describes each field separately; constraints between fields (heads divide the width) are checked by
    ``top.parse``.
    """
    definitions: Node = {}
    schema = _resolved(_generated(top), definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "$defs": {**schema.get("$defs", {}), **definitions},
    }


class _Generator(GenerateJsonSchema):
    """Pydantic's schema generator, with concise defaults and without titles of fields."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        node = super().default_schema(schema)
        default: Any = schema.get("default")
        if "default" in node and isinstance(default, (Spec, tuple)):
            choices: list[Node] = [node, node.get("items", {}), *node.get("anyOf", [])]
            node["default"] = plain(default, in_slot=any("x-slot" in choice for choice in choices))
        return node

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _generated(spec: type[Spec]) -> Node:
    return TypeAdapter(spec).json_schema(schema_generator=_Generator)


def _resolved(node: Any, definitions: Node) -> Any:
    """Replace each slot marker in ``node`` by a reference, and add the schemas of these slots to ``definitions``."""
    if isinstance(node, list):
        return [_resolved(item, definitions) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    fields = cast("Node", node)
    if "x-slot" not in fields:
        return {key: _resolved(value, definitions) for key, value in fields.items()}
    name = fields["x-slot"]
    if name not in definitions:
        definitions[name] = {}  # placeholder, because the slot's parts may contain the slot itself
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
    """Return the schemas of a slot's text forms: a kind, which editors complete, and ``kind(value, name=value)``."""
    kinds = sorted(slot.kinds())
    bare = [
        kind for kind in kinds if not any(field.is_required() for field in slot.kinds()[kind].model_fields.values())
    ]
    if "short_form" in vars(slot):
        return [{"type": "string", "description": "an expression of " + ", ".join(kinds), "examples": bare}]
    form = {
        "type": "string",
        "pattern": rf"^\s*({'|'.join(kinds)})\s*\(.*\)\s*$",
        "description": "kind(value, name=value)",
    }
    return [{"enum": bare}, form] if bare else [form]


def _slots() -> dict[str, type[Part]]:
    return {slot.__name__: slot for slot in Part.__subclasses__()}
