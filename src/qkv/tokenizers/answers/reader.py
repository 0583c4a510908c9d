"""Reading of a streamed answer: its reasoning, its content, and its tool calls, wherever the pieces are cut."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from qkv.tokenizers.answers.calls import Call, CallForm, Schemas, ToolCall
from qkv.tokenizers.answers.thoughts import ThinkingForm


class AnswerPart(NamedTuple):
    """Part of an answer: reasoning, content, and calls that are complete."""

    reasoning: str = ""
    content: str = ""
    calls: Sequence[ToolCall] = ()

    def __add__(self, other: AnswerPart) -> AnswerPart:  # type: ignore[override]
        return AnswerPart(self.reasoning + other.reasoning, self.content + other.content, (*self.calls, *other.calls))


class AnswerReader(ABC):
    """Incremental parser of one answer. Text that may belong to a border or to a call is held back.

    A call that cannot be parsed, or whose function is unknown, is content.
    """

    def __init__(self, calls: CallForm | None, schemas: Schemas | None, most: int | None = None):
        """``calls``: form of the calls; None: none are read. schemas: schema of the arguments of each function. most:
        maximum number of calls; further calls are dropped.
        """
        self._calls, self._schemas, self._most = calls, schemas or {}, most
        self._text, self._number = "", 0
        """Text that is held back, and number of calls so far."""

    def feed(self, text: str) -> AnswerPart:
        """Add a piece of text; return what it completes."""
        self._text += text
        return self._read()

    @property
    @abstractmethod
    def thinks(self) -> bool:
        """True while reasoning is read, or may begin."""

    def begin(self, text: str) -> None:
        """Read ``text``, the start of the answer that is part of the prompt, and forget what it holds."""
        self.feed(text)

    @abstractmethod
    def _read(self) -> AnswerPart:
        """Parse the text that is held back, as far as it is decided."""

    @abstractmethod
    def flush(self) -> AnswerPart:
        """Parse the text that is held back at the end."""

    def _called(self, text: str) -> list[ToolCall] | None:
        """Parse calls; None if ``text`` holds none."""
        assert self._calls is not None
        try:
            calls = self._calls.read(text, self._schemas)
        except ValueError:
            return None
        if not calls or any(name not in self._schemas for name, _ in calls):
            return None
        self._number += len(calls)
        room = len(calls) if self._most is None else max(0, self._most - self._number + len(calls))
        return [self._tool_call(call) for call in calls[:room]]

    def _tool_call(self, call: Call) -> ToolCall:
        assert self._calls is not None
        name, arguments = call
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return ToolCall(self._calls.new_id(), name, written)


class TaggedReader(AnswerReader):
    """Reader of answers in one text: reasoning between tags, then content and calls."""

    def __init__(
        self, thinking: ThinkingForm | None, calls: CallForm | None, schemas: Schemas | None, most: int | None = None
    ):
        """``thinking``: form of the reasoning; None: none is read."""
        super().__init__(calls, schemas, most)
        self._thinking = thinking
        self._state = "content" if thinking is None else "start"
        self._fresh = False
        """Whether white space is dropped, at the start of the reasoning or of the content after it."""
        self._spoken = False
        """Whether content has been returned, so that the answer as a whole is no call."""

    @property
    def thinks(self) -> bool:
        return self._state in ("start", "thinking")

    def begin(self, text: str) -> None:
        super().begin(text)
        if self._state == "content":
            self._text = ""

    def _read(self) -> AnswerPart:
        part, state, before = AnswerPart(), "", -1
        while self._text and (state, before) != (self._state, len(self._text)):
            state, before = self._state, len(self._text)
            part += getattr(self, f"_read_{state}")()
        return part

    def flush(self) -> AnswerPart:
        text, self._text = self._text, ""
        if self._state == "thinking":
            return AnswerPart(reasoning=text.rstrip())
        if self._state != "call":
            quiet = (self._number and not text.strip()) or self._partial(text)
            return AnswerPart(content="" if quiet else text)
        calls = self._called(text)
        return AnswerPart(calls=calls) if calls is not None else AnswerPart(content=self._begin + text)

    @property
    def _begin(self) -> str:
        return self._calls.begin if self._calls else ""

    def _partial(self, text: str) -> bool:
        """Return True for white space after the reasoning, which is no content."""
        return self._fresh and not text.strip()

    def _read_start(self) -> AnswerPart:
        assert self._thinking is not None
        text = self._text.lstrip()
        if text.startswith(self._thinking.begin):
            self._text, self._state, self._fresh = text[len(self._thinking.begin) :], "thinking", True
        elif not self._thinking.begin.startswith(text):
            self._state = "content"
        return AnswerPart()

    def _read_thinking(self) -> AnswerPart:
        assert self._thinking is not None
        if self._fresh:
            self._text = self._text.lstrip()
        inner, end, rest = self._text.partition(self._thinking.end)
        if end:
            self._text, self._state, self._fresh = rest, "content", True
            return AnswerPart(reasoning=inner.rstrip())
        inner, self._text = _decided(self._text, (self._thinking.end,))
        self._fresh = self._fresh and not inner
        return AnswerPart(reasoning=inner)

    def _read_content(self) -> AnswerPart:
        if self._fresh:
            self._text = self._text.lstrip()
        if self._calls is not None and not self._calls.begin and not self._spoken and self._may_be_call():
            return AnswerPart()
        dropped = self._thinking.dropped if self._thinking else ()
        borders = [text for text in (self._begin, *dropped) if text]
        if not borders:
            return self._content(self._text, "")
        place, border = min(((self._text.find(each), each) for each in borders if each in self._text), default=(-1, ""))
        if place < 0:
            return self._content(*_decided(self._text, borders, bool(self._begin)))
        part = self._content(self._text[:place], self._text[place + len(border) :], border == self._begin)
        self._state = "call" if border == self._begin else "content"
        self._fresh = self._fresh or border != self._begin
        return part

    def _content(self, text: str, rest: str, stripped: bool = False) -> AnswerPart:
        """Return content, and hold ``rest`` back. stripped: drop the white space before a call."""
        self._text = rest
        self._spoken = self._spoken or bool(text.strip())
        self._fresh = self._fresh and not text
        return AnswerPart(content=text.rstrip() if stripped else text)

    def _may_be_call(self) -> bool:
        """Return True if the answer as a whole may still be a call, and begin to read it as one if it is."""
        assert self._calls is not None
        text = self._text.lstrip()
        if any(text.startswith(start) for start in self._calls.starts):
            self._state = "call"
            return True
        return any(start.startswith(text) for start in self._calls.starts)

    def _read_call(self) -> AnswerPart:
        assert self._calls is not None
        end = self._calls.end
        if not end or end not in self._text:
            return AnswerPart()
        inner, _, self._text = self._text.partition(end)
        self._state = "content"
        calls = self._called(inner)
        return AnswerPart(content=self._begin + inner + end) if calls is None else AnswerPart(calls=calls)


_CHANNEL, _MESSAGE = "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", _CHANNEL)


class ChannelReader(AnswerReader):
    """Reader of answers in channels (harmony): headers, each followed by ``<|message|>`` and a text."""

    _header: str | None = None
    """Header of the message whose text is read; None while a header is read."""
    _begun = False
    """Whether a message has been read."""

    @property
    def thinks(self) -> bool:
        return self._header is None or "analysis" in self._header

    def _read(self) -> AnswerPart:
        part, before = AnswerPart(), None
        while self._text and before != (self._text, self._header):
            before = self._text, self._header
            part += self._read_header() if self._header is None else self._read_message()
        return part

    def _read_header(self) -> AnswerPart:
        header, message, rest = self._text.partition(_MESSAGE)
        if message:
            self._header, self._text, self._begun = header, rest, True
        return AnswerPart()

    def _read_message(self, last: bool = False) -> AnswerPart:
        place, end = min(((self._text.find(end), end) for end in _ENDS if end in self._text), default=(-1, ""))
        if place < 0 and self._function and not last:
            return AnswerPart()
        text, rest = (self._text[:place], self._text[place + len(end) :]) if end else _decided(self._text, _ENDS, False)
        if last and not end:
            text, rest = self._text, ""
        part = self._of_channel(text)
        self._text = rest
        if end:
            self._header = None
        return part

    @property
    def _function(self) -> str:
        """Name of the function that the message calls; "" for another message."""
        _, to, name = (self._header or "").partition("to=functions.")
        return name.split()[0].partition("<")[0] if to and name.strip() else ""

    def _of_channel(self, text: str) -> AnswerPart:
        if self._function:
            calls = self._called(f"{self._function} <|constrain|>json<|message|>{text}") if self._calls else None
            return AnswerPart(content=text) if calls is None else AnswerPart(calls=calls)
        if "analysis" in (self._header or ""):
            return AnswerPart(reasoning=text)
        return AnswerPart(content=text)

    def flush(self) -> AnswerPart:
        plain = "" if self._begun or _CHANNEL in self._text else self._text  # an answer without channels
        part = AnswerPart(content=plain) if self._header is None else self._read_message(last=True)
        self._text = ""
        return part


def _decided(text: str, borders: Sequence[str], spaces: bool = True) -> tuple[str, str]:
    """Split ``text`` into what no border can begin in, and the rest. spaces: keep white space before a border back."""
    longest = max((len(border) - 1 for border in borders), default=0)
    sizes = range(min(longest, len(text)), -1, -1)
    size = next(n for n in sizes if not n or any(border.startswith(text[-n:]) for border in borders))
    sure = text[: len(text) - size]
    sure = sure.rstrip() if spaces else sure
    return sure, text[len(sure) :]
