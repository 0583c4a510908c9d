"""Servers on free ports of this machine, in threads."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from openai import OpenAI
from tests.serving import models

from qkv.generation.decode.speculate import Speculator
from qkv.runs.run import Run
from qkv.serving.engine.model import ServedModel
from qkv.serving.engine.service import Service
from qkv.serving.http.app import Access
from qkv.serving.http.listen import HttpServer, http_server, open_socket, url_of
from qkv.serving.limits import Limits


class Running(NamedTuple):
    """Server that runs, and its address. open: what is closed at its end."""

    url: str
    service: Service
    server: HttpServer
    open: contextlib.ExitStack

    def client(self, key: str = "none") -> OpenAI:
        """The official client, without repeats after errors."""
        return self.open.enter_context(OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60))


@contextlib.contextmanager
def serving(
    runs: Mapping[str, Run | ServedModel],
    limits: Limits | None = None,
    access: Access | None = None,
    sent: int | None = None,
    speculation: Callable[[Run], Speculator] | None = None,
) -> Iterator[Running]:
    """Serve ``runs`` in a thread until the end of the block, which stops the server gracefully.

    sent: bytes that the system keeps for a client who does not read. speculation: see ``ServedModel``.
    """
    limits, models = limits or Limits(), {n: each for n, each in runs.items() if isinstance(each, ServedModel)}
    models |= {n: ServedModel(n, run, limits, speculation) for n, run in runs.items() if isinstance(run, Run)}
    service = Service(models, limits)
    server = http_server(service, access or Access())
    with open_socket("127.0.0.1", 0) as listener:
        if sent:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sent)
        url = url_of(listener)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            with contextlib.ExitStack() as stack:
                yield Running(url, service, server, stack)
        finally:
            server.should_exit = True
            thread.join(30)
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs of several kinds, by name."""
    folder: Path = tmp_path_factory.mktemp("runs")
    return {
        "rope": models.text_run(folder),
        "bytes": models.text_run(folder, "window", models.byte_pairs("bos", "eos")),
        "linear": models.text_run(folder, "linear"),
        "gru": models.text_run(folder, "gru"),
        "translation": models.translation_run(folder),
    }


@pytest.fixture(scope="session")
def server(runs: dict[str, Run]) -> Iterator[Running]:
    """One server with all ``runs``."""
    with serving(runs) as running:
        yield running
