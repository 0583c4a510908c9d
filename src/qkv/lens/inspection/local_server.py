"""Server of the page on this machine: it computes views when they are looked at, and changes of the input."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from qkv.lens.inspection.inspection import Inspection, inspect_run
from qkv.system.errors import UserError

LONGEST = 1 << 20
"""Maximum number of bytes of a request."""
_FIRST = ("answers",)
"""Views that are computed before the page is sent."""
_KINDS = {"row": dict, "ablated": list, "views": list}


class LocalServer(ThreadingHTTPServer):
    """HTTP server on 127.0.0.1 of the page of an inspection; ``port`` 0 takes a free one.

    It serves the page at "/" and answers POST "/view" with views as plain data. Requests that name another host are
    refused, so that no page of another site can read it; nothing is computed at the same time as something else.
    """

    daemon_threads = True

    def __init__(self, inspection: Inspection, port: int = 0):
        self.first = inspection
        self._kept: tuple[str, Inspection] | None = None
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def page(self) -> str:
        """Return the page of the first input."""
        with self._lock:
            return self.first.page(_FIRST, {} if isinstance(self.first.row, int) else self.first.row)

    def views(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Compute views for an input: ``row``, inputs by name, empty for the first one; ``ablated``, [path, head] of
        each head that is taken out; ``views``, their names. Raises ``UserError``.
        """
        for name, kind in _KINDS.items():
            if not isinstance(body.get(name), kind):
                raise UserError(f"{name} is missing, or no {'object' if kind is dict else 'list'}")
        heads = [(str(path), int(number)) for path, number in body["ablated"]]
        row = body["row"] or self.first.row
        answer = self.first.answer if row == self.first.row else None
        key = json.dumps([row, heads], sort_keys=True)
        with self._lock:
            if self._kept is None or self._kept[0] != key:
                subject = self.first.subject
                self._kept = key, inspect_run(subject.run, row, answer, heads, over=subject.text)
            return self._kept[1].plain(map(str, body["views"]))


class _Handler(BaseHTTPRequestHandler):
    server: LocalServer

    def do_GET(self) -> None:
        """Send the page."""
        if not self._is_local():
            return
        if self.path != "/":
            self._send(HTTPStatus.NOT_FOUND, b"there is only the page at /", "text/plain")
            return
        self._send(HTTPStatus.OK, self.server.page().encode(), "text/html; charset=utf-8")

    def do_POST(self) -> None:
        """Send views."""
        if not self._is_local():
            return
        try:
            self._json(HTTPStatus.OK, self.server.views(self._body()))
        except UserError as error:
            self._json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except (ValueError, TypeError):
            self._json(HTTPStatus.BAD_REQUEST, {"error": "the request is no JSON object with row, ablated and views"})
        except Exception as error:  # the page shows it, and the server goes on
            self._json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"this is a bug in qkv: {error!r}"})

    def _body(self) -> Mapping[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length <= LONGEST:
            raise UserError(f"the request has {length:,} bytes; allowed are 1 to {LONGEST:,}")
        body = json.loads(self.rfile.read(length))
        if self.path != "/view" or not isinstance(body, dict):
            raise UserError("views are computed by POST /view with a JSON object")
        return body

    def _is_local(self) -> bool:
        host, sent = self.headers.get("Host", ""), self.headers.get("Origin")
        names = {f"{name}:{self.server.server_address[1]}" for name in ("127.0.0.1", "localhost")}
        if host in names and (sent is None or sent.removeprefix("http://") in names):
            return True
        self._send(HTTPStatus.FORBIDDEN, b"only pages of this machine are answered", "text/plain")
        return False

    def _json(self, status: HTTPStatus, answer: Mapping[str, Any]) -> None:
        self._send(status, json.dumps(answer).encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log of requests."""
