"""Tool calls: the forms in which models write them, their parsing, and JSON schemas that enforce a call.

    <tool_call>                                       {"name": "f", "parameters": {…}}
    {"name": "f", "arguments": {…}}
    </tool_call>

On the left is the form of Hermes and Qwen, on the right that of Llama 3, where a call is the whole answer. Which form a
model uses is found out by rendering a call with its chat template.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from qkv.serving.requests.structure import Structure
from qkv.system.errors import UserError
from qkv.tokenizers.chat_template import ChatTemplate


class CallForm(NamedTuple):
    """Form in which a model writes a tool call in its answer.

    begin, end: texts before and after the call; both are empty if the call is the whole answer. arguments: JSON key of
    the arguments.
    """

    begin: str
    end: str
    arguments: str


MARKED = CallForm("<tool_call>", "</tool_call>", "arguments")
BARE = CallForm("", "", "parameters")
FORMS = (MARKED, BARE)
_NAME, _ARGUMENTS = "probe", {"key": "value"}
_PROBE = {"type": "function", "function": {"name": _NAME, "description": "", "parameters": {"type": "object"}}}


def call_form(template: ChatTemplate) -> CallForm:
    """Return the form in which a chat template renders a tool call: the one whose parser reads such a call correctly.

    Raises ``UserError`` for an unknown form.
    """
    call = {"id": "call00001", "type": "function", "function": {"name": _NAME, "arguments": _ARGUMENTS}}
    answer = template.answer({"role": "assistant", "content": "", "tool_calls": [call]}, tools=[_PROBE])
    for form in FORMS:
        reader = CallReader(form, {_NAME})
        parsed = (reader.feed(answer), reader.flush())
        arguments = [json.loads(tool_call.arguments) for part in parsed for tool_call in part.calls]
        if arguments == [_ARGUMENTS]:  # text around a marked call may differ from that around a plain answer
            return form
    raise UserError(
        "tools: the chat template of this model writes tool calls in a form that is not supported; supported are "
        "<tool_call> with JSON (Hermes, Qwen) and JSON with parameters (Llama 3)"
    )


class ToolCall(NamedTuple):
    """Call of a function; arguments: JSON as text."""

    id: str
    name: str
    arguments: str

    def to_dict(self) -> dict[str, Any]:
        """Return the call in OpenAI's form."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


class Parsed(NamedTuple):
    """Parsed part of an answer: content outside of calls, and calls."""

    content: str
    calls: Sequence[ToolCall]


class CallReader:
    """Incremental parser of tool calls in a streamed answer. Text that may belong to a call is held back.

    A call that is not valid JSON, or whose function is unknown, is treated as content.
    """

    def __init__(self, form: CallForm, names: Collection[str], begun: bool = False, most: int | None = None):
        """``names``: names of the functions. begun: whether the answer starts inside a call. most: maximum number of
        calls; further calls are dropped.
        """
        self._form, self._names, self._within, self._most = form, names, begun, most
        self._held, self._found, self._spoken = "", 0, False

    def feed(self, text: str) -> Parsed:
        """Add a piece of text; return the content and the calls that are complete."""
        self._held += text
        content, calls = "", list[ToolCall]()
        while not self._within or (self._form.end and self._form.end in self._held):
            if self._within:
                inner, _, self._held = self._held.partition(self._form.end)
                self._within = False
                content += self._call(inner, calls)
            else:
                before, begin, after = self._split()
                content += before
                self._held, self._within = after, begin
                if not begin:
                    break
        return Parsed(content, calls)

    def flush(self) -> Parsed:
        """Parse the text that is held back at the end."""
        calls, text = list[ToolCall](), self._held
        content = self._call(text, calls, whole=False) if self._within else text
        self._held = ""
        return Parsed("" if self._found and not content.strip() else content, calls)

    def _split(self) -> tuple[str, bool, str]:
        """Split the held-back text into (text before a call, True if a call begins after it, rest)."""
        text, mark = self._held, self._form.begin
        if not mark:  # the answer as a whole is either a call or content
            self._spoken = self._spoken or (bool(text.strip()) and not text.lstrip().startswith("{"))
            return (text, False, "") if self._spoken else ("", bool(text.strip()), text)
        before, begin, after = text.partition(mark)
        if begin:
            return before.rstrip(), True, after
        possible = next(n for n in range(min(len(mark) - 1, len(text)), -1, -1) if text.endswith(mark[:n]))
        sure = text[: len(text) - possible].rstrip()
        return sure, False, text[len(sure) :]

    def _call(self, text: str, calls: list[ToolCall], whole: bool = True) -> str:
        """Append the call in ``text`` to ``calls`` and return ""; if it is not a call, return it as content. whole:
        whether the text that ends a call was found.
        """
        call = self._parsed(text)
        if call is None:
            return self._form.begin + text + (self._form.end if whole else "")
        self._found += 1
        if self._most is None or self._found <= self._most:
            calls.append(call)
        return ""

    def _parsed(self, text: str) -> ToolCall | None:
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(tree, dict) or tree.get("name") not in self._names:
            return None
        arguments = tree.get(self._form.arguments, {})
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return ToolCall(f"call_{uuid.uuid4().hex[:24]}", tree["name"], written)


def required_call(tools: Sequence[Mapping[str, Any]], form: CallForm) -> Structure:
    """Build the JSON schema of exactly one call of one of the tools."""
    schemas, calls = dict[str, Any](), list[dict[str, Any]]()
    for place, tool in enumerate(tools):
        function = tool["function"]
        schemas[str(place)] = _moved(_parameters(function), f"#/$defs/{place}")
        properties = {"name": {"const": function["name"]}, form.arguments: {"$ref": f"#/$defs/{place}"}}
        required = ["name", form.arguments]
        calls.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    return Structure("json_schema", json.dumps({"$defs": schemas, "anyOf": calls}), "tools")


def call_or_answer(tools: Sequence[Mapping[str, Any]], form: CallForm, answer: Structure) -> Structure:
    """Build the JSON schema of either one call of one of the tools or JSON that the schema of ``answer`` allows."""
    try:
        schema = json.loads(answer.text)
    except (ValueError, RecursionError):
        return answer  # the invalid schema is refused when it is compiled
    both = json.loads(required_call(tools, form).text)
    both["$defs"]["answer"] = _moved(schema, "#/$defs/answer")
    both["anyOf"].append({"$ref": "#/$defs/answer"})
    return Structure("json_schema", json.dumps(both), answer.name)


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a function's arguments; without ``parameters``, only an empty object is allowed."""
    schema = function.get("parameters") or {}
    says = schema.keys() - {"type", "title", "description", "$schema"} or schema.get("type", "object") != "object"
    return schema if says else {"type": "object", "properties": {}, "additionalProperties": False}


def _moved(schema: Any, place: str) -> Any:
    """Rewrite the references of a schema from its root to ``place``, its JSON pointer within another schema."""
    if isinstance(schema, dict):
        return {
            key: re.sub("^#", place, each) if key == "$ref" and isinstance(each, str) else _moved(each, place)
            for key, each in schema.items()
        }
    return [_moved(each, place) for each in schema] if isinstance(schema, list) else schema
