"""Chat session: a conversation with one model, which can be taken back, answered anew, saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qkv.data.records.conversations.contents import shown_text, with_pictures
from qkv.runs.chats.history import HistoryFile, Message, SavedChat, read_chats
from qkv.runs.chats.model import ChatModel, RunningAnswer
from qkv.runs.chats.pictures import picture_uri
from qkv.runs.chats.settings import checked_settings
from qkv.spec.base import LARGEST_SEED
from qkv.system.errors import UserError


class ChatSession:
    """Conversation with a model. After each message it is written to its history file, if it has one.

    options: settings that replace those of the model's folder. The r-th retry of an answer has the seed of the options
    + r, so that it differs and can be repeated. A message without an answer, which was stopped before its first token,
    is replaced by the next message.
    """

    def __init__(self, model: ChatModel, options: Mapping[str, Any] | None = None):
        self.model, self.options, self.chat = model, checked_settings(options or {}), SavedChat()
        self.file: HistoryFile | None = None
        self.pictures: list[str] = []
        """Pictures of the next message, as data URIs."""
        self._retries = 0
        """Number of retries of the last answer."""

    @property
    def messages(self) -> Sequence[Message]:
        """Messages of the chat so far."""
        return self.chat.messages

    @property
    def turns(self) -> int:
        """Number of messages of the user."""
        return sum(message["role"] == "user" for message in self.messages)

    @property
    def system(self) -> str | None:
        """System message, or None."""
        first = self.messages[0] if self.messages else {"role": ""}
        return shown_text(first["content"]) if first["role"] == "system" else None

    def change_system(self, text: str) -> None:
        """Replace the system message; an empty text removes it."""
        rest = self.messages if self.system is None else self.messages[1:]
        self._change([*([{"role": "system", "content": text}] if text else []), *rest])

    def change_tools(self, tools: Sequence[dict[str, Any]]) -> None:
        """Replace the tools that the model may call. Raises ``UserError`` if it can call none, see ``calls_of``."""
        self.model.check_tools(tools)
        self.chat.tools = list(tools)
        self.write()

    def attach(self, path: str | Path) -> None:
        """Add the picture in a file to the next message, before its text. Raises ``UserError`` if it cannot be read, or
        if the model reads no pictures.
        """
        picture = picture_uri(path)
        self.model.check_picture(picture)
        self.pictures.append(picture)

    def ask(self, text: str) -> RunningAnswer:
        """Add a message of the user, and begin the answer. Raises ``UserError``; the message is then not added."""
        if not text.strip():
            raise UserError("the message is empty; write one")
        before = self.messages[:-1] if self.messages and self.messages[-1]["role"] == "user" else self.messages
        answer = self._answer([*before, {"role": "user", "content": with_pictures(text, self.pictures)}])
        self.pictures = []
        return answer

    def add_results(self, results: Sequence[tuple[Mapping[str, Any], str]]) -> RunningAnswer:
        """Add results of tool calls, and begin the answer to them. Raises ``UserError``; they are then not added."""
        return self._answer([*self.messages, *(_result(call, text) for call, text in results)])

    def _answer(self, messages: list[Message]) -> RunningAnswer:
        answer = self.model.answer(messages, self.chat.tools, self.options)
        self._retries = 0
        self._change(messages)
        return answer

    def retry(self) -> RunningAnswer:
        """Begin another answer in place of the last one. Raises ``UserError``."""
        if not self._unanswered:
            raise UserError("there is no message to answer yet")
        seed, retries = self.options.get("seed"), self._retries + 1
        change = {} if seed is None else {"seed": (seed + retries) % (LARGEST_SEED + 1)}
        answer = self.model.answer(self._unanswered, self.chat.tools, {**self.options, **change})
        self._retries = retries
        return answer

    def take(self, answer: RunningAnswer) -> None:
        """Add what was written of an answer, in place of the one before, if there is one."""
        if answer.message is not None:
            self._change([*self._unanswered, answer.message])

    @property
    def _unanswered(self) -> Sequence[Message]:
        """Messages without an answer at their end; none if the user has written none."""
        if self.turns == 0:
            return []
        return self.messages[:-1] if self.messages[-1]["role"] == "assistant" else self.messages

    @property
    def calls(self) -> Sequence[dict[str, Any]]:
        """Tool calls of the last message."""
        return self.messages[-1].get("tool_calls", ()) if self.messages else ()

    def undo(self) -> str:
        """Take back the last message of the user and all after it; return its text. Raises ``UserError``."""
        places = [place for place, message in enumerate(self.messages) if message["role"] == "user"]
        if not places:
            raise UserError("there is no message to take back")
        text = shown_text(self.messages[places[-1]]["content"])
        self._change(self.messages[: places[-1]])
        return text

    def begin(self) -> None:
        """Begin a new chat with the same system message and tools; the history file keeps the chat so far."""
        messages = self.messages[:1] if self.system is not None else []
        self._begin(SavedChat(list(messages), self.chat.tools))

    def load(self, path: Path) -> int:
        """Go on with a copy of the last chat in a file; return the number of chats there. Raises ``UserError``."""
        chats = read_chats(path)
        if not chats:
            raise UserError(f"{path} holds no chat")
        self._begin(chats[-1])
        return len(chats)

    def _begin(self, chat: SavedChat) -> None:
        if self.file is not None and self.turns:
            self.file.add(self.chat)
        self.chat, self.pictures = chat, []
        self.write()

    def save(self, path: Path) -> None:
        """Write the chat to a file, after the chats that the file has, and again after each message from now on.
        Raises ``UserError``.
        """
        if self.file is None or self.file.path != path:
            self.file = HistoryFile(path)
        self.write()

    def resume(self, path: Path) -> bool:
        """Go on with the last chat in a file, and keep it there; return whether there is one. Raises ``UserError``."""
        self.file = HistoryFile(path)
        chat = self.file.take_last()
        self.chat = chat or self.chat
        return chat is not None

    def write(self) -> None:
        """Write the history file, if there is one. Raises ``UserError``."""
        if self.file is not None:
            self.file.write(self.chat)

    def _change(self, messages: Sequence[Message]) -> None:
        self.chat = replace(self.chat, messages=list(messages))
        self.write()


def _result(call: Mapping[str, Any], text: str) -> Message:
    """Return the message with the result of a tool call."""
    identity = {"tool_call_id": call["id"]} if "id" in call else {}
    return {"role": "tool", "content": text, "name": call["function"]["name"], **identity}
