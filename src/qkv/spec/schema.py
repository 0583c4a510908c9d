"""The JSON schema of a recipe, with which editors complete and check a YAML file."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from qkv.spec.base import Part, Spec


def json_schema(top: type[Spec]) -> dict[str, Any]:
    """JSON Schema (2020-12) of ``top`` with every slot as a definition that lists its registered parts."""
    definitions: dict[str, Any] = {}
    schema = _resolved(TypeAdapter(top).json_schema(), definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": {**schema.get("$defs", {}), **definitions}}


def _resolved(node: Any, definitions: dict[str, Any]) -> Any:
    """``node`` with each slot marker replaced by a reference; the slots met are added to ``definitions``."""
    if isinstance(node, list):
        return [_resolved(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "x-slot" not in node:
        return {key: _resolved(value, definitions) for key, value in node.items()}
    name = node["x-slot"]
    if name not in definitions:
        definitions[name] = {}  # stands in while the slot's own parts, which may hold the slot again, are read
        definitions[name] = _slot_schema(_slots()[name], definitions)
    rest = {key: value for key, value in node.items() if key != "x-slot"}
    return {"$ref": f"#/$defs/{name}", **rest}


def _slot_schema(slot: type[Part], definitions: dict[str, Any]) -> dict[str, Any]:
    kinds = sorted(slot.kinds())
    choices: list[Any] = [{"type": "string", "description": "short form: a kind, or kind(value, name=value)", "examples": kinds}]
    for kind in kinds:
        fields = _resolved(TypeAdapter(slot.kinds()[kind]).json_schema(), definitions)
        definitions.update(fields.pop("$defs", {}))
        fields["properties"] = {"kind": {"const": kind}, **fields.get("properties", {})}
        fields["required"] = ["kind", *fields.get("required", [])]
        choices.append(fields)
    return {"description": slot.__doc__ or "", "anyOf": choices}


def _slots() -> dict[str, type[Part]]:
    return {slot.__name__: slot for slot in Part.__subclasses__()}
