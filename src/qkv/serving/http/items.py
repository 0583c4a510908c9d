"""Format of the answers of ``/v1/responses``: output items, whole and as events with OpenAI's names."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from qkv.serving.errors import ApiError
from qkv.serving.http.answers import AnswerLayout, AskedTexts, Pieces, event, raise_failed
from qkv.serving.http.forms import Written

Event = tuple[str, dict[str, Any]]
"""Name of an event and its fields."""


class Output:
    """Output items of an answer while it is generated. The methods yield the events that report each change."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        """Content part of the last item whose text is being generated; None if no part is open."""

    def add(self, message: Mapping[str, Any], scores: Sequence[Any]) -> Iterator[Event]:
        """Add a message or a part of it: reasoning, text with the log-probabilities of its tokens, then tool calls."""
        thought, content = message.get("reasoning_content"), message.get("content") or ""
        if thought:
            yield from self._thought(thought)
        if content or (scores and not (thought or self._thinking)):
            yield from self._text(content, scores)
        for call in message.get("tool_calls", ()):
            yield from self.close("completed")
            yield from self._call(call)

    def close(self, status: str) -> Iterator[Event]:
        """End the open content part and its item, if there is one. status: status of the item."""
        part, self._open = self._open, None
        if part is None:
            return
        if part["type"] == "reasoning_text":
            yield "response.reasoning_text.done", {**self._place, "text": part["text"]}
        else:
            text = {"text": part["text"], "logprobs": part["logprobs"]}
            yield "response.output_text.done", {**self._place, **text}
        yield "response.content_part.done", {**self._place, "part": part}
        yield from self._end_item(status)

    def end(self, status: str) -> Iterator[Event]:
        """End the answer. If it has no item, add an item with empty text. status: status of the last item."""
        if not self.items:
            yield from self._text("", ())
        yield from self.close(status)

    @property
    def _thinking(self) -> bool:
        return self._open is not None and self._open["type"] == "reasoning_text"

    def _thought(self, thought: str) -> Iterator[Event]:
        if not self._thinking:
            yield from self.close("completed")
            yield from self._begin_item("rs", {"type": "reasoning", "summary": [], "content": []})
            yield from self._begin_part({"type": "reasoning_text", "text": ""})
        assert self._open is not None
        self._open["text"] += thought
        yield "response.reasoning_text.delta", {**self._place, "delta": thought}

    def _begin_part(self, part: dict[str, Any]) -> Iterator[Event]:
        self._open = part
        self.items[-1]["content"].append(part)
        yield "response.content_part.added", {**self._place, "part": part}

    def _text(self, content: str, scores: Sequence[Any]) -> Iterator[Event]:
        if self._thinking:
            yield from self.close("completed")
        if self._open is None:
            message = {"type": "message", "role": "assistant", "content": []}
            yield from self._begin_item("msg", message)
            yield from self._begin_part({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
        assert self._open is not None
        self._open["text"] += content
        self._open["logprobs"] += scores
        if content or scores:
            yield "response.output_text.delta", {**self._place, "delta": content, "logprobs": list(scores)}

    def _call(self, call: Mapping[str, Any]) -> Iterator[Event]:
        """Add a tool call, which arrives as one piece."""
        function = call["function"]
        item = {"type": "function_call", "call_id": call["id"], "name": function["name"], "arguments": ""}
        yield from self._begin_item("fc", item)
        place = {name: self._place[name] for name in ("item_id", "output_index")}
        yield "response.function_call_arguments.delta", {**place, "delta": function["arguments"]}
        self.items[-1]["arguments"] = function["arguments"]
        fields = {"name": function["name"], "arguments": function["arguments"]}
        yield "response.function_call_arguments.done", {**place, **fields}
        yield from self._end_item("completed")

    def _begin_item(self, prefix: str, item: dict[str, Any]) -> Iterator[Event]:
        self.items.append({"id": f"{prefix}_{uuid.uuid4().hex}", **item, "status": "in_progress"})
        yield "response.output_item.added", {"output_index": len(self.items) - 1, "item": self.items[-1]}

    def _end_item(self, status: str) -> Iterator[Event]:
        self.items[-1]["status"] = status
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": self.items[-1]}

    @property
    def _place(self) -> dict[str, Any]:
        """Id and indices of the last item and its content part, as events report them."""
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, "content_index": 0}


class ResponseLayout(AnswerLayout):
    """Format of one response."""

    def __init__(self, echo: Mapping[str, Any], keep: Callable[[str, list[dict[str, Any]]], None] | None = None):
        """``echo``: fields of the request that are repeated in the response. keep: function that keeps the output items
        of a response by its id, or None.
        """
        self._echo, self._id, self._created = echo, f"resp_{uuid.uuid4().hex}", int(time.time())
        self._keep = keep

    def whole(self, request: AskedTexts, texts: Sequence[Written]) -> dict[str, Any]:
        (written,), output = texts, Output()
        choice = request.form.choice(0, written)
        message, scores = choice["message"], _scores(choice)
        for _ in output.add(message, scores):
            pass
        status = _status(choice["finish_reason"])
        for _ in output.end(status):
            pass
        return self._response(request, status, output, len(written.tokens))

    async def events(self, request: AskedTexts, pieces: Pieces) -> AsyncIterator[bytes]:
        output, written, number = Output(), 0, 0
        begun = {"response": self._response(request, "in_progress", output, None)}
        for name in ("response.created", "response.in_progress"):
            yield _event(name, begun, number)
            number += 1
        status = "failed"
        try:
            async for index, piece in pieces:
                raise_failed(piece)
                written += len(piece.tokens)
                choice = request.form.delta(index, piece)
                for name, fields in _add_choice(output, choice) if choice else ():
                    yield _event(name, fields, number)
                    number += 1
                if choice and choice["finish_reason"]:
                    status = _status(choice["finish_reason"])
        except ApiError as error:
            failed = self._response(request, "failed", output, written, error)
            yield _event("response.failed", {"response": failed}, number)
            return
        yield _event(f"response.{status}", {"response": self._response(request, status, output, written)}, number)

    def _response(
        self, request: AskedTexts, status: str, output: Output, written: int | None, error: ApiError | None = None
    ) -> dict[str, Any]:
        """Build the response object, and keep it if it is complete. written: number of generated tokens; None at the
        start of a stream.
        """
        if self._keep is not None and status in ("completed", "incomplete"):
            self._keep(self._id, output.items)
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None if error is None else {"code": error.code or "server_error", "message": error.sentence},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": request.model.name,
            "output": output.items,
            "usage": None if written is None else _usage(request, written),
            **self._echo,
        }


def _add_choice(output: Output, choice: Mapping[str, Any]) -> Iterator[Event]:
    """Add a chunk of a choice to ``output``; yield the events."""
    yield from output.add(choice["delta"], _scores(choice))
    if choice["finish_reason"]:
        yield from output.end(_status(choice["finish_reason"]))


def _scores(choice: Mapping[str, Any]) -> list[Any]:
    return choice["logprobs"]["content"] if choice["logprobs"] else []


def _status(finished: str) -> str:
    return "incomplete" if finished == "length" else "completed"


def _usage(request: AskedTexts, written: int) -> dict[str, Any]:
    return {
        "input_tokens": request.read,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": request.form.reasoning_tokens or 0},
        "total_tokens": request.read + written,
    }


def _event(name: str, fields: Mapping[str, Any], number: int) -> bytes:
    return event({"type": name, **fields, "sequence_number": number}, name)
