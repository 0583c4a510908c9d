"""Responses to completions and chats: as one JSON body, or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from qkv.generation.queue.requests import Request, TextDelta
from qkv.serving.engine.metrics import Metrics
from qkv.serving.engine.model import ServedModel
from qkv.serving.engine.worker import Mailbox
from qkv.serving.errors import ApiError
from qkv.serving.http.forms import Form, Written
from qkv.serving.http.reading import unless_dropped
from qkv.serving.requests.bodies import GenerationBody

NOT_ENFORCED, MAX_HEADER = "x-qkv-not-enforced", 2000
"""Header that names the keywords of a JSON schema that are not enforced, and its maximum number of characters."""
Pieces = AsyncIterator[tuple[int, TextDelta]]
"""Asynchronous iterator over (index of a text, new piece of it)."""


class AnswerLayout(ABC):
    """Format of a response: its JSON body, and its events if it is streamed."""

    @abstractmethod
    def whole(self, asked: AskedTexts, texts: Sequence[Written]) -> dict[str, Any]:
        """Return the body of a response that is not streamed."""

    @abstractmethod
    def events(self, asked: AskedTexts, pieces: Pieces) -> AsyncIterator[bytes]:
        """Yield the server-sent events of a streamed response; an error after its start is sent as an event."""


@dataclass(frozen=True)
class AskedTexts:
    """Texts that one HTTP request asks for. read: number of prompt tokens. layout: format of the response."""

    model: ServedModel
    body: GenerationBody
    form: Form
    requests: Sequence[Request]
    read: int
    metrics: Metrics
    layout: AnswerLayout

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response: keywords of the JSON schema that are not enforced, if there are any."""
        constraint = self.requests[0].constraint if self.requests else None
        dropped = ", ".join(constraint.dropped) if constraint else ""
        said = dropped if len(dropped) <= MAX_HEADER else f"{dropped[: MAX_HEADER - 1].rpartition(', ')[0]}, ..."
        return {NOT_ENFORCED: said} if dropped else {}


async def answer(http: HttpRequest, asked: AskedTexts) -> Response:
    """Submit the requests and respond with one body, or with a stream if the request's body asks for it. Raises
    ``UserError`` and ``ApiError``.
    """
    begun, most = time.monotonic(), asked.model.limits.queue
    if len(asked.requests) > most:
        said = f"{len(asked.requests)} texts are requested, but the queue has room for {most}"
        raise ApiError(said, code="invalid_value")
    mailbox = await unless_dropped(http, asked.model.worker.submit(asked.requests))
    watched = asked.metrics.watched(asked.model.name, asked.read, mailbox, begun)
    if asked.body.stream:
        return EventStream(asked.layout.events(asked, watched), lambda: _close(asked, mailbox), asked.headers)
    try:
        return JSONResponse(await unless_dropped(http, _whole(asked, watched)), headers=asked.headers)
    finally:
        _close(asked, mailbox)


def _close(asked: AskedTexts, mailbox: Mailbox) -> None:
    """Cancel the texts that have not ended, such as those of a client that has disconnected, and count them."""
    asked.metrics.count_texts(asked.model.name, "cancelled", len(mailbox.open))
    asked.model.worker.cancel(mailbox)


async def _whole(asked: AskedTexts, pieces: Pieces) -> dict[str, Any]:
    texts = [Written() for _ in asked.requests]
    async for index, piece in pieces:
        raise_failed(piece)
        texts[index].add(piece)
    return asked.layout.whole(asked, texts)


class ChoicesLayout(AnswerLayout):
    """Format of completions and chats: choices, and chunks of choices."""

    def whole(self, asked: AskedTexts, texts: Sequence[Written]) -> dict[str, Any]:
        choices = [asked.form.choice(index, text) for index, text in enumerate(texts)]
        usage = _usage(asked, sum(len(text.tokens) for text in texts))
        return {**_head(asked, asked.form.whole), "choices": choices, "usage": usage}

    async def events(self, asked: AskedTexts, pieces: Pieces) -> AsyncIterator[bytes]:
        head, written = _head(asked, asked.form.chunk), 0
        usual = {"usage": None} if asked.body.wants_usage else {}
        for index in range(len(asked.requests)):
            if opening := asked.form.opening(index):
                yield event({**head, "choices": [opening], **usual})
        try:
            async for index, piece in pieces:
                raise_failed(piece)
                written += len(piece.tokens)
                if choice := asked.form.delta(index, piece):
                    yield event({**head, "choices": [choice], **usual})
        except ApiError as error:
            yield event(error.to_dict())
            return
        if asked.body.wants_usage:
            yield event({**head, "choices": [], "usage": _usage(asked, written)})
        yield b"data: [DONE]\n\n"


def raise_failed(piece: TextDelta) -> None:
    """Raise ``ApiError`` if the text was aborted: 504 past its deadline, 400 for its constraint, else 500."""
    if piece.finished == "deadline":
        raise ApiError("the request took longer than this server allows", 504, code="timeout")
    if piece.finished == "refused":
        raise ApiError(piece.error, code="invalid_value")
    if piece.finished in ("failed", "cancelled"):
        raise ApiError(piece.error or "the request was cancelled", 500, code=piece.finished)


def event(content: dict[str, Any], name: str = "") -> bytes:
    """Encode a server-sent event, with a ``name`` if it is not empty."""
    # In ASCII: some clients also end a line at other separators, such as U+2028, which a text may contain.
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(content, separators=(',', ':'))}\n\n".encode()


def _head(asked: AskedTexts, name: str) -> dict[str, Any]:
    identity = f"{asked.form.prefix}-{uuid.uuid4().hex}"
    return {"id": identity, "object": name, "created": int(time.time()), "model": asked.model.name}


def _usage(asked: AskedTexts, written: int) -> dict[str, int]:
    return {"prompt_tokens": asked.read, "completion_tokens": written, "total_tokens": asked.read + written}


class EventStream(StreamingResponse):
    """Streaming response of server-sent events. ``close`` is called at its end, also if the client disconnects."""

    def __init__(
        self, events: AsyncIterator[bytes], close: Callable[[], None], headers: Mapping[str, str] | None = None
    ):
        told = {"cache-control": "no-cache", **(headers or {})}
        super().__init__(events, media_type="text/event-stream", headers=told)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, as an ASGI application."""

        async def sent(message: Message) -> None:
            await send(message)
            # Let the event loop notice a disconnected client, so that even events that are ready are not sent to it.
            await asyncio.sleep(0)

        try:
            await super().__call__(scope, receive, sent)
        finally:
            self._close()
