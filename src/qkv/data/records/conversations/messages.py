"""Messages of conversations, in the form that chat templates read, from the forms in which people store them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qkv.data.records.values import Unusable
from qkv.system.errors import quoted

Message = dict[str, Any]

_ROLES = {
    "system": ("system", "developer"),
    "user": ("user", "human", "question", "prompter"),
    "assistant": ("assistant", "gpt", "chatgpt", "model", "bot", "ai", "function_call"),
    "tool": ("tool", "function", "observation", "tool_response", "function_response", "ipython"),
}
ROLES = {name: role for role, names in _ROLES.items() for name in names}
"""Role of a message by its name in OpenAI's form, ShareGPT's and others."""
_TEXT_PARTS = ("text", "input_text", "output_text")
_KEPT = ("name", "tool_call_id", "reasoning_content", "weight")


def read_messages(value: Any, where: str = "messages") -> list[Message]:
    """Read a list of messages: ``{"role", "content"}`` (OpenAI) or ``{"from", "value"}`` (ShareGPT), or its JSON.

    Arguments of tool calls become objects, text parts one text. Raises ``Unusable``.
    """
    entries = parsed(value, where)
    if isinstance(entries, Mapping):
        entries = entries.get("messages", entries.get("conversations", [entries]))
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise Unusable(f"{where} is {quoted(entries)}, not a list of messages")
    return [_read_message(entry, f"message {i} of {where}") for i, entry in enumerate(entries, 1)]


def read_tools(value: Any) -> tuple[dict[str, Any], ...] | None:
    """Read the tools of a conversation: a list of JSON schemas, or its JSON; None for an empty cell. Raises
    ``Unusable``.
    """
    tools = parsed(value, "tools")
    if tools is None or tools == []:
        return None
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
        raise Unusable(f"tools is {quoted(tools)}, not a list of objects")
    return tuple(dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)} for tool in tools)


def parsed(value: Any, where: str) -> Any:
    """Return a cell as plain data: JSON of a list or object is parsed, an empty text is None. Raises ``Unusable``."""
    if hasattr(value, "tolist"):  # array of a table reader
        value = value.tolist()
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not text.startswith(("[", "{")):
        return value if text else None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{where} is not JSON: {error}") from None


def _read_message(entry: Any, where: str) -> Message:
    if not isinstance(entry, Mapping):
        raise Unusable(f"{where} is {quoted(entry)}, not an object with role and content")
    name = entry.get("role", entry.get("from"))
    role = ROLES.get(name.strip().lower()) if isinstance(name, str) else None
    if role is None:
        raise Unusable(f"{where} has the role {quoted(name)}; allowed: {', '.join(ROLES)}")
    content = _content(entry.get("content", entry.get("value")), where)
    message: Message = {"role": role, "content": content}
    message |= {key: entry[key] for key in _KEPT if entry.get(key) is not None}
    calls = [_call(call, where) for call in entry.get("tool_calls") or ()]
    if entry.get("function_call"):
        calls.append(_call({"function": entry["function_call"]}, where))
    if name == "function_call":
        calls, message["content"] = [_call(parsed(content, where), where)], ""
    if calls:
        message["tool_calls"] = calls
    return message


def _content(value: Any, where: str) -> str:
    """Return the content of a message as one text; None, as beside tool calls, is empty."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    parts = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(parts, Sequence):
        raise Unusable(f"the content of {where} is {quoted(value)}, not a text")
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    kinds = [part.get("type", "text") if isinstance(part, Mapping) else "text" for part in parts]
    strange = next(
        (kind for kind, text in zip(kinds, texts, strict=True) if kind not in _TEXT_PARTS or text is None), ""
    )
    if strange:
        raise Unusable(f"the content of {where} has a part of the type {strange!r}; allowed: {', '.join(_TEXT_PARTS)}")
    return "".join(map(str, texts))


def _call(call: Any, where: str) -> dict[str, Any]:
    """Return a tool call as ``{"type", "function": {"name", "arguments"}}``, with an object of arguments."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Unusable(f"{where} has the tool call {quoted(call)}, which names no function")
    arguments = function.get("arguments", function.get("parameters")) or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise Unusable(f"{where} calls {function['name']!r} with arguments that are not JSON") from None
    if not isinstance(arguments, Mapping):
        raise Unusable(f"{where} calls {function['name']!r} with {quoted(arguments)}, not an object of arguments")
    identity = {"id": call["id"]} if call.get("id") else {}
    return {**identity, "type": "function", "function": {"name": function["name"], "arguments": dict(arguments)}}
