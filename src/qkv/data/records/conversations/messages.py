"""Messages of conversations, in the form that chat templates read, from the forms in which people store them."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

from qkv.data.records.conversations.contents import STORED, content_of, parts_of
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
_REASONING = ("reasoning_content", "reasoning", "thinking")
_LIST = re.compile(r"""\s*\[\s*\{\s*["'](role|from)["']\s*:""")
_KEYS = {"role", "from", "content", "value", "tool_calls", "function_call", *_KEPT, *_REASONING}
_TRANSCRIPT = "\n\nHuman:"
_SPEAKER = re.compile(r"\n\n(Human|Assistant):")


def read_messages(value: Any, where: str = "messages") -> list[Message]:
    """Read a list of messages: ``{"role", "content"}`` (OpenAI) or ``{"from", "value"}`` (ShareGPT), or its JSON.

    Arguments of tool calls become objects, text parts one text; a content with pictures stays a list of parts. Raises
    ``Unusable``.
    """
    entries = parsed(value, where)
    if isinstance(entries, Mapping):
        entries = entries.get("messages", entries.get("conversations", [entries]))
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise Unusable(f"{where} is {quoted(entries)}, not a list of messages")
    return [_read_message(entry, f"message {i} of {where}") for i, entry in enumerate(entries, 1)]


def read_text_or_messages(value: Any, where: str) -> str | list[Message]:
    """Read a cell that is a text, or messages or their JSON, or a transcript of "\\n\\nHuman: … \\n\\nAssistant: …".

    JSON of anything but messages remains a text, such as an answer that is a JSON object. Empty for an empty cell.
    Raises ``Unusable``, also for a number.
    """
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise Unusable(f"its {where} is the number {value}, not a text; write it in quotation marks")
    if isinstance(value, str) and value.startswith(_TRANSCRIPT):
        _, *parts = _SPEAKER.split(value)
        turns = zip(parts[::2], parts[1::2], strict=True)
        return [{"role": "user" if name == "Human" else "assistant", "content": text.strip()} for name, text in turns]
    if isinstance(value, str) and not _holds_messages(value):
        return value
    return read_messages(value, where)


def _holds_messages(text: str) -> bool:
    """Return True if a text begins like the JSON of a list of messages, or is a message or several."""
    if _LIST.match(text):
        return True
    if not text.lstrip().startswith(("[", "{")):
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    entries = value if isinstance(value, list) else [value]
    return bool(entries) and all(map(_is_message, entries))


def _is_message(entry: Any) -> bool:
    if not isinstance(entry, Mapping) or not entry.keys() <= _KEYS:
        return False
    return _role(entry) is not None and any(isinstance(entry.get(key), str) for key in ("content", "value"))


def _role(entry: Mapping[str, Any]) -> str | None:
    name = entry.get("role", entry.get("from"))
    return ROLES.get(name.strip().lower()) if isinstance(name, str) else None


def check_characters(value: Any) -> None:
    """Raise ``Unusable`` if a text within ``value`` has half a surrogate pair, which no tokenizer encodes."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise Unusable("it contains half a surrogate pair, which is not a character") from None


def read_tools(value: Any) -> tuple[dict[str, Any], ...] | None:
    """Read the tools of a conversation: a list of JSON schemas, or its JSON; None for an empty cell. Raises
    ``Unusable``.
    """
    tools: Any = parsed(value, "tools")
    if tools is None or tools == []:
        return None
    if isinstance(tools, Sequence) and not isinstance(tools, str):
        tools = [parsed(tool, "tools") for tool in tools]
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
        raise Unusable(f"tools is {quoted(tools)}, not a list of objects")
    schemas: list[dict[str, Any]] = [dict(tool) for tool in cast("Sequence[Mapping[str, Any]]", tools)]
    return tuple(tool if "function" in tool else {"type": "function", "function": tool} for tool in schemas)


def read_arguments(value: Any) -> dict[str, Any]:
    """Return the arguments of a tool call as an object, which chat templates read. They may be given as JSON; an empty
    text means no arguments. Raises ``ValueError``.
    """
    try:
        arguments = (json.loads(value) if value.strip() else {}) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, Mapping):
        raise ValueError(f"{quoted(value)} given; allowed: the JSON of an object")
    return dict(arguments)


def parsed(value: Any, where: str) -> Any:
    """Return a cell as plain data: a list or object is parsed, from JSON or as Python prints it, as in tables that were
    written by pandas; an empty text is None. Raises ``Unusable``.
    """
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
        value = _python_value(text)
        if value is None:
            raise Unusable(f"{where} is not JSON: {error}") from None
        return value


def _python_value(text: str) -> Any:
    """Return a list or object as Python prints it; None for other texts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of backslashes that escape nothing
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def _read_message(entry: Any, where: str) -> Message:
    if not isinstance(entry, Mapping):
        raise Unusable(f"{where} is {quoted(entry)}, not an object with role and content")
    name, role = entry.get("role", entry.get("from")), _role(entry)
    if role is None:
        allowed = f"{', '.join(_ROLES)}, and other names of these, such as human and gpt"
        raise Unusable(f"{where} has the role {quoted(name)}; allowed: {allowed}")
    content = entry.get("content", entry.get("value"))
    if content is None and role in ("system", "user"):
        raise Unusable(f"{where}, of the role {name!r}, has no content")
    message: Message = {"role": role, "content": _pictured(content, role, where) or _content(content, where)}
    message |= {key: entry[key] for key in _KEPT if entry.get(key) is not None}
    thought = next((entry[key] for key in _REASONING if entry.get(key) is not None), None)
    if thought is not None:
        message["reasoning_content"] = _content(thought, where)
    if message.get("weight") not in (None, 0, 1):
        raise Unusable(f"{where} has the weight {quoted(message['weight'])}; allowed: 0 and 1")
    calls = _calls(entry, where)
    if name.strip().lower() == "function_call":
        calls, message["content"] = _list_of_calls(message["content"], where), ""
    if calls and role != "assistant":
        raise Unusable(f"{where}, of the role {name!r}, calls a tool, but only the assistant can")
    return {**message, "tool_calls": calls} if calls else message


def _calls(entry: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the tool calls of a message, in OpenAI's current and older form."""
    older = entry.get("function_call")
    return [
        *(_list_of_calls(entry["tool_calls"], where) if entry.get("tool_calls") else ()),
        *(_list_of_calls(older, where) if older else ()),
    ]


def _list_of_calls(value: Any, where: str) -> list[dict[str, Any]]:
    value = parsed(value, f"the tool call of {where}")
    calls = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return [_call(call, where) for call in calls]


def _pictured(value: Any, role: str, where: str) -> list[dict[str, Any]] | None:
    """Return the content of a message with pictures as parts in OpenAI's form; None for one without. Raises
    ``Unusable``.
    """
    parts = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(parts, list) or not any(
        isinstance(part, Mapping) and part.get("type") in STORED for part in parts
    ):
        return None
    if role == "assistant":
        raise Unusable(f"{where}, an answer, has a picture, but a model answers with texts")
    try:
        return parts_of(content_of(parts, STORED))
    except ValueError as error:
        raise Unusable(f"the content of {where}: {error}") from None


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
    try:
        arguments = read_arguments(function.get("arguments", function.get("parameters")) or {})
    except ValueError as error:
        raise Unusable(f"{where} calls {function['name']!r} with arguments that cannot be used: {error}") from None
    identity = {"id": call["id"]} if call.get("id") else {}
    return {**identity, "type": "function", "function": {"name": function["name"], "arguments": arguments}}
