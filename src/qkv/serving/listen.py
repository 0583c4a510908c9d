"""Listening: the socket of a server, and its graceful end."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator

import uvicorn

from qkv.serving.app import Access, app_of
from qkv.serving.service import Service
from qkv.spec.errors import UserError


def open_socket(host: str, port: int) -> socket.socket:
    """Socket that listens at ``host`` and ``port``; 0 for a free one. Raises ``UserError`` if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        said = str(getattr(error, "strerror", None) or error).lower()
        raise UserError(f"the server cannot listen at {host}, port {port}: {said}; give another --port") from None


class HttpServer(uvicorn.Server):
    """Server that ends gracefully at SIGINT and SIGTERM: it takes no new connection and finishes what it began.

    A second signal ends it at once.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Context manager in which the signals end the server; uvicorn's own raises them again at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: object) -> None:
        """Record a signal."""
        self.force_exit = self.should_exit
        self.should_exit = True


def http_server(service: Service, access: Access, patience: float | None = None) -> HttpServer:
    """Server for ``service``; ``run(sockets=[…])`` serves. patience: seconds for what it began; None for no limit."""
    config = uvicorn.Config(
        app_of(service, access),
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=None if patience is None else max(1, round(patience)),
    )
    return HttpServer(config)


def serve(service: Service, access: Access, listener: socket.socket, patience: float | None = None) -> None:
    """Serve until a signal arrives and what was begun is finished."""
    http_server(service, access, patience).run(sockets=[listener])


def url_of(listener: socket.socket) -> str:
    """Address of a listening socket, such as ``http://127.0.0.1:8000``."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
