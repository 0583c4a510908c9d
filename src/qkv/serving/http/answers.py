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
    def whole(self, request: AskedTexts, texts: Sequence[Written]) -> dict[str, Any]:
        """Return the body of a response that is not streamed."""

    @abstractmethod
    def events(self, request: AskedTexts, pieces: Pieces) -> AsyncIterator[bytes]:
        """Yield the server-sent events of a streamed response; an error after its start is sent as an event."""


@dataclass(frozen=True)
class AskedTexts:
    """Texts that one HTTP request asks for. read: number of prompt tokens. layout: format of the response. ignored:
    parameters without effect on this model.
    """

    model: ServedModel
    body: GenerationBody
    form: Form
    requests: Sequence[Request]
    read: int
    metrics: Metrics
    layout: AnswerLayout
    ignored: Sequence[str] = ()

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response: keywords of the JSON schema that are not enforced, if there are any."""
        constraint = self.requests[0].constraint if self.requests else None
        dropped = ", ".join(constraint.dropped) if constraint else ""
        keywords = dropped if len(dropped) <= MAX_HEADER else f"{dropped[: MAX_HEADER - 1].rpartition(', ')[0]}, ..."
        return {NOT_ENFORCED: keywords} if dropped else {}


async def answer(http: HttpRequest, request: AskedTexts) -> Response:
    """Submit the requests and respond with one body, or with a stream if the request's body asks for it. Raises
    ``UserError`` and ``ApiError``.
    """
    begun, most = time.monotonic(), request.model.limits.queue
    if len(request.requests) > most:
        sentence = f"{len(request.requests)} texts are requested, but the queue has room for {most}"
        raise ApiError(sentence, code="invalid_value")
    mailbox = await unless_dropped(http, request.model.worker.submit(request.requests))
    watched = request.metrics.watched(request.model.name, request.read, mailbox, begun)
    if request.body.stream:
        return EventStream(request.layout.events(request, watched), lambda: _close(request, mailbox), request.headers)
    try:
        return JSONResponse(await unless_dropped(http, _whole(request, watched)), headers=request.headers)
    finally:
        _close(request, mailbox)


def _close(request: AskedTexts, mailbox: Mailbox) -> None:
    """Cancel the texts that have not ended, such as those of a client that has disconnected, and count them."""
    request.metrics.count_texts(request.model.name, "cancelled", len(mailbox.open))
    request.model.worker.cancel(mailbox)


async def _whole(request: AskedTexts, pieces: Pieces) -> dict[str, Any]:
    texts = [Written() for _ in request.requests]
    async for index, piece in pieces:
        raise_failed(piece)
        texts[index].add(piece)
    return request.layout.whole(request, texts)


class ChoicesLayout(AnswerLayout):
    """Format of completions and chats: choices, and chunks of choices."""

    def whole(self, request: AskedTexts, texts: Sequence[Written]) -> dict[str, Any]:
        choices = [request.form.choice(index, text) for index, text in enumerate(texts)]
        usage = _usage(request, sum(len(text.tokens) for text in texts))
        return {**_head(request, request.form.whole), "choices": choices, "usage": usage}

    async def events(self, request: AskedTexts, pieces: Pieces) -> AsyncIterator[bytes]:
        head, written = _head(request, request.form.chunk), 0
        usual = {"usage": None} if request.body.wants_usage else {}
        for index in range(len(request.requests)):
            if opening := request.form.opening(index):
                yield event({**head, "choices": [opening], **usual})
        try:
            async for index, piece in pieces:
                raise_failed(piece)
                written += len(piece.tokens)
                if choice := request.form.delta(index, piece):
                    yield event({**head, "choices": [choice], **usual})
        except ApiError as error:
            yield event(error.to_dict())
            return
        if request.body.wants_usage:
            yield event({**head, "choices": [], "usage": _usage(request, written)})
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


def _head(request: AskedTexts, name: str) -> dict[str, Any]:
    identity = f"{request.form.prefix}-{uuid.uuid4().hex}"
    return {"id": identity, "object": name, "created": int(time.time()), "model": request.model.name}


def _usage(request: AskedTexts, written: int) -> dict[str, Any]:
    counts = {"prompt_tokens": request.read, "completion_tokens": written, "total_tokens": request.read + written}
    thoughts = request.form.reasoning_tokens
    return counts if thoughts is None else {**counts, "completion_tokens_details": {"reasoning_tokens": thoughts}}


class EventStream(StreamingResponse):
    """Streaming response of server-sent events. ``close`` is called at its end, also if the client disconnects."""

    def __init__(
        self, events: AsyncIterator[bytes], close: Callable[[], None], headers: Mapping[str, str] | None = None
    ):
        fields = {"cache-control": "no-cache", **(headers or {})}
        super().__init__(events, media_type="text/event-stream", headers=fields)
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
