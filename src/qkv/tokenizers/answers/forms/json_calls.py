"""Tool calls as JSON: one object, or a list of objects, with the name of a function and its arguments.

<tool_call>{"name": "f", "arguments": {…}}</tool_call>        Hermes, Qwen 2.5 and 3, Granite 4, SmolLM2
{"name": "f", "parameters": {…}}                              Llama 3, where calls are the whole answer
[TOOL_CALLS][{"name": "f", "arguments": {…}, "id": "…"}]      Mistral
<|tool_call|>[{"name": "f", "arguments": {…}}]                Granite 3
<|tool_call|>[{"name": "f", "arguments": {…}}]<|/tool_call|>  Phi-4-mini
<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {…}}]<|END_ACTION|>      Command R
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qkv.tokenizers.answers.calls import Call, CallForm, Demand, Schemas, register

_BETWEEN = re.compile(r"[\s;,]*")
"""White space and separators between two calls."""


@dataclass(frozen=True)
class JsonCalls(CallForm):
    """Calls as JSON objects. function, arguments: keys of the function's name and of its arguments. listed: True if the
    objects are in a list. number: key of a call's number; "" for none.
    """

    name: str
    begin: str = ""
    end: str = ""
    arguments: str = "arguments"
    function: str = "name"
    listed: bool = False
    starts: tuple[str, ...] = ()
    gap: str = ""
    short_ids: bool = False
    number: str = ""

    def read(self, text: str, schemas: Schemas) -> list[Call]:
        """Parse objects, or lists of objects, one after another."""
        text = next((text.lstrip().removeprefix(start) for start in self.starts if len(start) > 1), text)
        calls, place, decoder = list[Call](), _BETWEEN.match(text).end(), json.JSONDecoder()  # pyright: ignore
        while place < len(text):
            try:
                tree, place = decoder.raw_decode(text, place)
            except RecursionError:
                raise ValueError("nested too deeply") from None
            calls += [self._call(each) for each in (tree if isinstance(tree, list) else [tree])]
            place = _BETWEEN.match(text, place).end()  # pyright: ignore
        return calls

    def _call(self, tree: Any) -> Call:
        if not isinstance(tree, dict) or not isinstance(tree.get(self.function), str):
            raise ValueError(f"a call must be an object with a string under {self.function!r}")
        return tree[self.function], tree.get(self.arguments, {})

    def write(self, calls: Sequence[Call]) -> str:
        """Write the calls: in one list, or each between ``begin`` and ``end``."""
        objects = [
            {**({self.number: str(i)} if self.number else {}), self.function: name, self.arguments: arguments}
            for i, (name, arguments) in enumerate(calls)
        ]
        if self.listed:
            return f"{self.begin}{json.dumps(objects, ensure_ascii=False)}{self.end}"
        texts = [json.dumps(each, ensure_ascii=False) for each in objects]
        if not self.begin:
            return "; ".join(texts)
        return "\n".join(f"{self.begin}{self.gap}{text}{self.gap}{self.end}" for text in texts)

    def demand(self, schemas: Schemas) -> Demand:
        """Return the JSON schema of one call, in a list if calls are listed."""
        one = self.schema(schemas)
        if not self.listed:
            return Demand("json_schema", one)
        defs = one.pop("$defs")
        return Demand("json_schema", {"$defs": defs, "type": "array", "items": one, "minItems": 1, "maxItems": 1})

    def schema(self, schemas: Schemas) -> dict[str, Any]:
        """Return the JSON schema of the object of one call."""
        definitions, calls = dict[str, Any](), list[dict[str, Any]]()
        for place, (name, schema) in enumerate(schemas.items()):
            definitions[str(place)] = moved(schema, f"#/$defs/{place}")
            parts = {self.function: {"const": name}, self.arguments: {"$ref": f"#/$defs/{place}"}}
            if self.number:
                parts = {self.number: {"const": "0"}, **parts}
            calls.append(
                {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
            )
        return {"$defs": definitions, "anyOf": calls}


def moved(schema: Any, place: str) -> Any:
    """Rewrite the references in a schema for its new ``place`` in another schema, a JSON pointer."""
    if isinstance(schema, Mapping):
        return {
            key: re.sub("^#", place, each) if key == "$ref" and isinstance(each, str) else moved(each, place)
            for key, each in schema.items()
        }
    return [moved(each, place) for each in schema] if isinstance(schema, list) else schema


HERMES = register(JsonCalls("hermes", "<tool_call>", "</tool_call>", gap="\n"))
PHI = register(JsonCalls("phi", "<|tool_call|>", "<|/tool_call|>", listed=True))
GRANITE = register(JsonCalls("granite", "<|tool_call|>", listed=True))
GRANITE_TAG = register(JsonCalls("granite_tag", "<tool_call>", listed=True))
MISTRAL = register(JsonCalls("mistral", "[TOOL_CALLS]", listed=True, short_ids=True))
COMMAND = register(
    JsonCalls(
        "command",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        "parameters",
        "tool_name",
        listed=True,
        number="tool_call_id",
    )
)
LLAMA = register(JsonCalls("llama", arguments="parameters", starts=("<|python_tag|>", "{")))
PLAIN = register(JsonCalls("json", starts=("{",)))
