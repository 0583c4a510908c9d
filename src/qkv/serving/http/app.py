"""HTTP interface as an ASGI application: routes, access control, error responses."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.serving.engine.service import Service
from qkv.serving.errors import ApiError, as_api_error
from qkv.serving.http.answers import NOT_ENFORCED
from qkv.serving.http.completions import chat, completions
from qkv.serving.http.embeddings import embeddings
from qkv.serving.http.inspections import inspections
from qkv.serving.http.predictions import predictions
from qkv.serving.http.reranking import rerankings
from qkv.serving.http.responses import responses
from qkv.serving.http.speech import speech
from qkv.serving.http.transcriptions import transcriptions, translations
from qkv.serving.requests.effects import HEADER, header

Endpoint = Callable[[HttpRequest, Service], Awaitable[Response]]
OPEN = ("/", "/health")
"""Paths that need no key."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
}
_PART = re.compile(r"\{\{ ([\w.]+) \}\}")
"""Placeholder in the page for the contents of another file."""
_LOG = logging.getLogger("qkv.serving")


@dataclass(frozen=True)
class Access:
    """Access control. key: required as ``Authorization: Bearer KEY``; None: no key. hosts: allowed values of the
    request's ``Host`` header, without port; empty for all. origins: origins of other web pages that may send requests
    (CORS), "*" for all.
    """

    key: str | None = None
    hosts: Sequence[str] = LOOPBACK
    origins: Sequence[str] = ()


def app_of(service: Service, access: Access) -> Starlette:
    """Build the ASGI application of ``service``; it starts and stops the worker threads of the models."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        workers = [model.worker for model in service.models.values()]
        for worker in workers:
            await asyncio.to_thread(worker.start, asyncio.get_running_loop())
        yield
        for worker in workers:
            await asyncio.to_thread(worker.stop)

    posts: dict[str, Endpoint] = {
        "/v1/completions": completions,
        "/v1/chat/completions": chat,
        "/v1/responses": responses,
        "/v1/embeddings": embeddings,
        "/v1/rerank": rerankings,
        "/v1/inspect": inspections,
        "/v1/audio/speech": speech,
        "/predict": predictions,
        "/v1/audio/transcriptions": transcriptions,
        "/v1/audio/translations": translations,
    }
    gets: dict[str, Endpoint] = {"/": page, "/health": health, "/metrics": metrics, "/v1/models": models}
    gets["/v1/models/{name:path}"] = one_model
    routes = [Route(path, _responding(each, service), methods=["POST"]) for path, each in posts.items()]
    routes += [Route(path, _responding(each, service), methods=["GET"]) for path, each in gets.items()]
    guards = [Middleware(Guard, service=service, access=access, paths=[*posts, *gets])]
    if access.origins:
        exposed = [HEADER, NOT_ENFORCED]
        anything: dict[str, Any] = {"allow_methods": ["*"], "allow_headers": ["*"], "expose_headers": exposed}
        cors = Middleware(CORSMiddleware, allow_origins=list(access.origins), **anything)
        guards.insert(0, cors)
    handlers: dict[Any, Any] = {HTTPException: _not_found}
    return Starlette(routes=routes, middleware=guards, lifespan=lifespan, exception_handlers=handlers)


async def page(_: HttpRequest, service: Service) -> Response:
    """Answer ``GET /``: a web page to chat with the models, complete texts and watch the server. It loads no other
    files.
    """
    return HTMLResponse(_page(), headers=_PAGE_HEADERS)


@cache
def _page() -> str:
    """Read the web page, with its styles and scripts inserted."""
    folder = Path(__file__).parents[1] / "page"
    whole = (folder / "page.html").read_text(encoding="utf-8")
    return _PART.sub(lambda match: (folder / match[1]).read_text(encoding="utf-8").rstrip(), whole)


async def health(_: HttpRequest, service: Service) -> Response:
    """Answer ``GET /health``: a fixed status and the names of the models, as a sign that the server runs."""
    return JSONResponse({"status": "ok", "models": list(service.models)})


async def metrics(_: HttpRequest, service: Service) -> Response:
    """Answer ``GET /metrics``: the metrics of the server in the format of Prometheus."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def models(_: HttpRequest, service: Service) -> Response:
    """Answer ``GET /v1/models``: all models with their capabilities."""
    return JSONResponse({"object": "list", "data": [model.to_dict() for model in service.models.values()]})


async def one_model(http: HttpRequest, service: Service) -> Response:
    """Answer ``GET /v1/models/NAME``: one model with its capabilities."""
    return JSONResponse(service.model(http.path_params["name"]).to_dict())


def _responding(endpoint: Endpoint, service: Service) -> Callable[[HttpRequest], Awaitable[Response]]:
    """Wrap ``endpoint`` so that exceptions become JSON responses, and set the header of ignored parameters."""

    async def respond(http: HttpRequest) -> Response:
        try:
            response = await endpoint(http, service)
            if ignored := getattr(http.state, "ignored", None):
                response.headers[HEADER] = header(ignored)
            return response
        except ClientDisconnect:
            return Response(status_code=499)  # the client has disconnected; the status is counted
        except Exception as error:
            return refusal(as_api_error(error), error)

    return respond


def refusal(problem: ApiError, error: Exception | None = None) -> Response:
    """Build the response of an error. A bug (status 500) is logged with its traceback."""
    if problem.status == 500:
        _LOG.error("%s", problem.sentence, exc_info=error)
    headers = {429: {"retry-after": "1"}, 401: {"www-authenticate": "Bearer"}}.get(problem.status)
    return JSONResponse(problem.to_dict(), problem.status, headers=headers)


async def _not_found(http: HttpRequest, error: HTTPException) -> Response:
    """Respond to unknown paths and methods."""
    path = http.url.path
    sentence = f"there is no path {path!r}" if error.status_code == 404 else f"{http.method} is not allowed at {path!r}"
    return refusal(ApiError(sentence, error.status_code, code="not_found" if error.status_code == 404 else "method"))


class Guard:
    """ASGI middleware that checks host and key, and counts requests by path and status."""

    def __init__(self, app: ASGIApp, service: Service, access: Access, paths: Sequence[str]):
        self._app, self._service, self._access, self._paths = app, service, access, frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        named = path if path in self._paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._service.metrics.count_http(named, message["status"])
            await send(message)

        problem = self._problem(path, Headers(scope=scope))
        await (self._app if problem is None else refusal(problem))(scope, receive, counted)

    def _problem(self, path: str, headers: Headers) -> ApiError | None:
        # DNS rebinding: a web page can resolve its host name to this machine, but the Host header still has that name.
        host = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
        if self._access.hosts and host.strip("[]") not in self._access.hosts:
            return ApiError(f"the host {host!r} is not served here", 403, code="host")
        if self._access.key is None or path in OPEN:
            return None
        kind, _, key = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(key.strip().encode("latin-1"), self._access.key.encode()):
            return None
        sentence = "the key is wrong" if key else "a key is needed: send the header 'Authorization: Bearer KEY'"
        return ApiError(sentence, 401, code="invalid_api_key")
