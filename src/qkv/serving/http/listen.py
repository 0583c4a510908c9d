"""Socket, start and graceful shutdown of a server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn

from qkv.serving.engine.service import Service
from qkv.serving.http.app import Access, app_of
from qkv.system.collector import collect_once
from qkv.system.errors import UserError


def open_socket(host: str, port: int) -> socket.socket:
    """Open a socket bound to ``host`` and ``port`` (0: any free port) that does not accept connections yet.

    Raises ``UserError`` if the address cannot be used.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if os.name == "posix":  # a port that another server has just released can be used at once
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise _listen_error(host, port, error) from None
    return listener


def _listen_error(host: str, port: int, error: Exception) -> UserError:
    reason = str(getattr(error, "strerror", None) or error).lower()
    return UserError(f"the server cannot listen at {host}, port {port}: {reason}; give another --port")


def listen(opened: socket.socket) -> None:
    """Let a socket accept connections. Raises ``UserError`` if another server has taken its address meanwhile."""
    try:
        opened.listen(512)
    except OSError as error:
        host, port, *_ = opened.getsockname()
        raise _listen_error(host, port, error) from None


class HttpServer(uvicorn.Server):
    """Server that shuts down gracefully at SIGINT and SIGTERM: it accepts no new connections and finishes running
    requests.

    A second signal ends it at once.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Context manager: SIGINT and SIGTERM shut the server down inside. Unlike uvicorn's, it does not raise the
        signals again at the end.
        """
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
        """Request shutdown at the first signal, and immediate exit at the second."""
        self.force_exit = self.should_exit
        self.should_exit = True


def http_server(service: Service, access: Access, patience: float | None = None) -> HttpServer:
    """Build the server of ``service``; ``run(sockets=[…])`` starts it. patience: seconds in which running requests must
    finish at shutdown; None for no limit.
    """
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


def serve(
    service: Service,
    access: Access,
    opened: socket.socket,
    patience: float | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve at an ``opened`` socket until a signal arrives and running requests have finished.

    The socket accepts connections once all models are warm. tell: called with a line when a model is warm, and when the
    server accepts connections. Raises ``UserError`` if the port has been taken meanwhile.
    """
    for name, seconds in service.warm():
        tell(f"{name}: warm after {seconds:.1f} s (weights laid out, kernels built, a test text generated)")
    collect_once()
    listen(opened)
    tell(f"serving at {url_of(opened)} (OpenAI's interface: {url_of(opened)}/v1); Ctrl-C stops it")
    http_server(service, access, patience).run(sockets=[opened])


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket, such as ``http://127.0.0.1:8000``."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
