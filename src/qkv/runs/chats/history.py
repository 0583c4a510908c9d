"""Files of chats, in the form of training data: one JSON object a line, ``{"messages": […], "tools": […]}``.

The last line is the chat that goes on; a new chat is a new line. The page of the server reads and writes the same form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.data.records.conversations.contents import STORED, content_of, parts_of
from qkv.system.errors import UserError, nearest, quoted
from qkv.system.files import write_file

Message = dict[str, Any]
ROLES = ("system", "user", "assistant", "tool")
_SAME_ROLES = {"developer": "system", "function": "tool"}


@dataclass
class SavedChat:
    """Messages of a chat, in the form that chat templates read, its tools in OpenAI's form, and further columns."""

    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    columns: dict[str, Any] = field(default_factory=dict)

    def to_line(self) -> str:
        """Return the chat as one line of JSON."""
        tools = {"tools": self.tools} if self.tools else {}
        return json.dumps({"messages": self.messages, **tools, **self.columns}, ensure_ascii=False)


class HistoryFile:
    """File in which a chat is kept. The chats that the file had before come first, and their lines do not change."""

    def __init__(self, path: Path):
        """Read the file, if it exists. Raises ``UserError`` for a file that holds anything but chats."""
        self.path = path
        rows = list(_rows(path)) if path.exists() else []
        self._chats = [saved_chat(row, place) for row, place in rows]
        self.lines = [json.dumps(row, ensure_ascii=False) for row, _ in rows]
        """Lines before the current chat."""

    def take_last(self) -> SavedChat | None:
        """Remove the last chat from ``lines`` and return it, as ``write`` writes it anew; None if there is none."""
        if not self.lines:
            return None
        self.lines.pop()
        return self._chats.pop()

    def add(self, chat: SavedChat) -> None:
        """Add a chat before the current one."""
        self.lines.append(chat.to_line())

    def write(self, chat: SavedChat) -> None:
        """Replace the file atomically, with ``chat`` at its end. Raises ``UserError``."""
        lines = [*self.lines, *([chat.to_line()] if chat.messages else [])]
        try:
            write_file(self.path, "".join(f"{line}\n" for line in lines))
        except OSError as error:
            raise UserError(f"{self.path} cannot be written: {_reason(error)}") from None


def read_chats(path: Path) -> list[SavedChat]:
    """Read the chats of a file: one JSON object a line; or one JSON document, which is a chat, a list of messages, or a
    list of chats. Raises ``UserError``.
    """
    return [saved_chat(row, place) for row, place in _rows(path)]


def _rows(path: Path) -> Iterator[tuple[Any, str]]:
    """Yield the JSON of each chat in a file, and its place there."""
    text = _text(path)
    document = _document(text)
    if document is not None:
        for number, row in enumerate(document, 1):
            yield row, f"{path}, chat {number}" if len(document) > 1 else str(path)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            place = f"{path}, line {number}"
            try:
                yield json.loads(line), place
            except (ValueError, RecursionError):
                raise UserError(f"{place}: {quoted(line)} given; allowed: JSON of a chat, with its messages") from None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {_reason(error)}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} cannot be read: it is not UTF-8 text") from None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _document(text: str) -> list[Any] | None:
    """Return the chats of a text that is one JSON document; None for any other text."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return None
    of_messages = isinstance(tree, list) and bool(tree) and isinstance(tree[0], dict) and "role" in tree[0]
    return tree if isinstance(tree, list) and not of_messages else [tree]


def saved_chat(row: Any, place: str) -> SavedChat:
    """Validate the JSON of a chat. Raises ``UserError`` that begins with ``place``."""
    row = {"messages": row} if isinstance(row, list) else row
    if not isinstance(row, dict) or "messages" not in row:
        raise UserError(f"{place}: {quoted(row)} given; allowed: a chat, with a list of 'messages'")
    columns = {name: value for name, value in row.items() if name not in ("messages", "tools")}
    return SavedChat(checked_messages(row["messages"], place), checked_tools(row.get("tools") or [], place), columns)


def checked_messages(messages: Any, place: str = "messages") -> list[Message]:
    """Return messages in the form that chat templates read. ``place``: beginning of an error's sentence.

    Arguments of calls that are JSON become objects; the roles ``developer`` and ``function`` become ``system`` and
    ``tool``. Raises ``UserError``.
    """
    if not _is_list(messages):
        raise UserError(f"{place}: {quoted(messages)} given; allowed: a list of messages, each with role and content")
    return [_checked_message(each, f"{place}: message {number}") for number, each in enumerate(messages, 1)]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _checked_message(message: Any, place: str) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UserError(f"{place}: {quoted(message)} given; allowed: an object with role and content")
    role = _SAME_ROLES.get(message["role"], message["role"])
    if role not in ROLES:
        raise UserError(f"{place}: the role {quoted(role)} given; {nearest(str(role), ROLES)}")
    texts = {name: message.get(name) or "" for name in ("content", "reasoning_content")}
    texts["content"] = _content(texts["content"], place)
    plain = texts if not isinstance(texts["content"], list) else {**texts, "content": ""}
    wrong = next((name for name, text in plain.items() if not isinstance(text, str)), None)
    if wrong is not None:
        raise UserError(f"{place}: {wrong} is {quoted(texts[wrong])}; allowed: a text")
    calls = [_checked_call(each, place) for each in message.get("tool_calls") or ()]
    more = {name: value for name, value in message.items() if name not in (*texts, "tool_calls") and value is not None}
    thought = {"reasoning_content": texts["reasoning_content"]} if texts["reasoning_content"] else {}
    return {**more, "role": role, "content": texts["content"], **thought, **({"tool_calls": calls} if calls else {})}


def _content(content: Any, place: str) -> Any:
    """Return a content whose parts are texts as one text, and one with pictures as parts in OpenAI's form; another one
    unchanged. Raises ``UserError``.
    """
    try:
        return parts_of(content_of(content, STORED)) if isinstance(content, list) else content
    except ValueError as error:
        raise UserError(f"{place}: content: {error}") from None


def _checked_call(call: Any, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UserError(f"{place}: the call {quoted(call)} given; allowed: an object with a function and its name")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise UserError(f"{place}: the arguments {quoted(arguments)} are not JSON") from None
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def read_tools(path: Path) -> list[dict[str, Any]]:
    """Read the JSON file of a list of tools. Raises ``UserError``."""
    text = _text(path)
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not JSON; allowed: a list of tools in OpenAI's form") from None
    return checked_tools(tree, str(path))


def checked_tools(tools: Any, place: str = "tools") -> list[dict[str, Any]]:
    """Return tools as they are, since templates render them so. ``place``: beginning of an error's sentence.

    Raises ``UserError`` for anything but a list of tools in OpenAI's form with different names.
    """
    if not _is_list(tools):
        raise UserError(f"{place}: {quoted(tools)} given; allowed: a list of tools in OpenAI's form")
    names = list[str]()
    for number, tool in enumerate(tools, 1):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            form = '{"type": "function", "function": {"name": "…", "description": "…", "parameters": {…}}}'
            raise UserError(f"{place}: tool {number}: {quoted(tool)} given; allowed: {form}")
        if name in names:
            raise UserError(f"{place}: the function {name!r} is given twice; each tool needs a different name")
        names.append(name)
    return list(tools)
