"""Reading of HTTP requests: bodies within limits, and cancellation when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from qkv.serving.errors import ApiError
from qkv.serving.limits import Limits
from qkv.serving.requests.bodies import Body, parsed
from qkv.serving.requests.effects import tell, without_effect

_JSON, _FORM = "application/json", "multipart/form-data"
_DISCARDED = 2**30
"""Maximum number of bytes beyond the limit that are read and discarded before an error response."""


async def read_body(request: HttpRequest, kind: type[Body], limits: Limits) -> Body:
    """Read and parse the JSON body of a request; set ``request.state.ignored`` to its parameters without effect.

    Raises ``ApiError``: 415 for another media type, 413 for too many bytes, 400 for a body that is not JSON, for wrong
    parameters and, if the limits are strict, for parameters without effect. Raises ``TimeoutError`` (408) if the body
    does not arrive in time.
    """
    media_type = request.headers.get("content-type", "")
    # Web pages of other origins can send plain text without a CORS preflight, but not JSON.
    if media_type.partition(";")[0].strip().lower() != _JSON:
        raise ApiError(f"the content type is {media_type!r}, but {_JSON} is needed", 415, code="unsupported_media_type")
    data = await _whole(request, limits.body, limits.read_seconds)
    body = await asyncio.to_thread(parsed, data, kind)
    request.state.ignored = without_effect(body)
    tell(request.state.ignored, body, limits.strict)
    return body


async def read_form(request: HttpRequest, kind: type[Body], limits: Limits) -> tuple[Body, Mapping[str, bytes]]:
    """Read the body of a request as a form (multipart/form-data); return (its fields, its files by name).

    Fields whose names end with "[]" are lists, and the ends are left out. Raises as ``read_body``.
    """
    content_type = Message()
    content_type["content-type"] = request.headers.get("content-type", "")
    boundary = content_type.get_param("boundary")
    if content_type.get_content_type() != _FORM or not isinstance(boundary, str) or not boundary:
        media_type = request.headers.get("content-type", "")
        sentence = f"the content type is {media_type!r}, but {_FORM} with a boundary is needed"
        raise ApiError(sentence, 415, code="unsupported_media_type")
    data = await _whole(request, max(limits.body, limits.sound), limits.read_seconds)
    fields, files = await asyncio.to_thread(divide_form, data, boundary.encode("latin-1", "replace"))
    body = kind.parse(fields)
    request.state.ignored = without_effect(body)
    tell(request.state.ignored, body, limits.strict)
    return body, files


def divide_form(data: bytes, boundary: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return (texts, files) by name of the parts of a form (RFC 7578). Raises ``ApiError`` for parts without a name."""
    fields, files = dict[str, Any](), dict[str, bytes]()
    for part in (b"\r\n" + data).split(b"\r\n--" + boundary)[1:]:
        if part.startswith(b"--"):
            break
        head, _, content = part.partition(b"\r\n\r\n")
        about = BytesHeaderParser().parsebytes(head.strip() + b"\r\n\r\n")
        name = about.get_param("name", header="content-disposition")
        if not isinstance(name, str):
            raise ApiError("the form has a part without a name", code="invalid_form")
        if about.get_param("filename", header="content-disposition") is not None:
            files[name] = content
        elif name.endswith("[]"):
            fields.setdefault(name[:-2], []).append(content.decode("utf-8", "replace"))
        else:
            fields[name] = content.decode("utf-8", "replace")
    return fields, files


async def _whole(request: HttpRequest, most: int, seconds: float) -> bytes:
    """Return the body of a request. Raises ``ApiError`` (413) for more than ``most`` bytes, and ``TimeoutError``."""
    declared = request.headers.get("content-length", "")
    too_large = declared.isdecimal() and (len(declared) > 18 or int(declared) > most)
    async with asyncio.timeout(seconds):
        data = await _bytes(request, -1 if too_large else most)
    if data is None:
        sentence = f"the body has more than {most:,} bytes, the limit of this server"
        raise ApiError(sentence, 413, code="body_too_large")
    return data


async def _bytes(request: HttpRequest, most: int) -> bytes | None:
    """Return the bytes of the body; None if there are more than ``most``.

    Further bytes are read and discarded, up to a limit: a client that is still sending would not see the response if
    the connection were closed.
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
    """Await ``work`` and return its result. If the client closes its connection, cancel ``work`` and raise
    ``ClientDisconnect``.

    The body of the request must have been read.
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
