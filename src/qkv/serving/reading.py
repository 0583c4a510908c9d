"""Reading of HTTP requests: their bodies within limits, and the end of their connection."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from qkv.serving.bodies import Body, parsed
from qkv.serving.effects import tell, without_effect
from qkv.serving.errors import ApiError
from qkv.serving.limits import Limits

_JSON = "application/json"
_DISCARDED = 2**30
"""Bytes of a body beyond the limit that are read before the connection is closed."""


async def read_body(request: HttpRequest, kind: type[Body], limits: Limits) -> Body:
    """Read and parse the JSON body of a request, whose ``state.ignored`` becomes the parameters without effect.

    Raises ``ApiError``: 415 for another media type, 413 for too many bytes, 408 if it does not arrive in time, 400 for
    what is not JSON or has wrong parameters, or, if the limits are strict, parameters without effect.
    """
    given = request.headers.get("content-type", "")
    # Pages of other hosts can send plain text without asking, but no JSON.
    if given.partition(";")[0].strip().lower() != _JSON:
        raise ApiError(f"the content type is {given!r}, and {_JSON} is needed", 415, code="unsupported_media_type")
    declared = request.headers.get("content-length", "")
    too_large = declared.isdecimal() and (len(declared) > 18 or int(declared) > limits.body)
    async with asyncio.timeout(limits.read_seconds):
        data = await _bytes(request, -1 if too_large else limits.body)
    if data is None:
        sentence = f"the body has more than {limits.body:,} bytes, the limit of this server"
        raise ApiError(sentence, 413, code="body_too_large")
    body = await asyncio.to_thread(parsed, data, kind)
    request.state.ignored = without_effect(body)
    tell(request.state.ignored, body, limits.strict)
    return body


async def _bytes(request: HttpRequest, most: int) -> bytes | None:
    """Bytes of the body; None if there are more than ``most``.

    These are read too, but not kept: a client that still sends would not see the answer if the connection were closed.
    """
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size <= most:
            parts.append(part)
        else:
            parts.clear()
        if size > most + _DISCARDED:
            return None
    return b"".join(parts) if size <= most else None


async def unless_dropped(request: HttpRequest, work: Coroutine[Any, Any, Any]) -> Any:
    """Result of ``work``, which is cancelled if the client closes its connection. Raises ``ClientDisconnect`` then.

    The body must have been read.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_closed(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _closed(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
