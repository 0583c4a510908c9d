"""What the first request needs is there before the port opens, and figures of a worker are counted by its thread."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serving.conftest import Running, serving
from tests.serving.models import text_run, translation_run
from tests.serving.test_chat import CHATML, folder_of
from tests.serving.test_robust import metric

from qkv.generation.logits import constrain
from qkv.generation.queue import prefixes, requests
from qkv.models.fast import native_step
from qkv.ops.selection import timing
from qkv.runs.run import Run
from qkv.serving.engine import model, worker
from qkv.serving.engine import service as serving_service
from qkv.serving.engine.model import ServedModel
from qkv.serving.engine.service import Service
from qkv.serving.http import listen
from qkv.serving.http.app import Access
from qkv.serving.limits import Limits
from qkv.system.errors import UserError

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "the fox"}],
    "max_tokens": 3,
    "temperature": 0,
    "ignore_eos": True,
}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of what prepares a model, by name."""
    found = Counter[str]()

    def count(owner: Any, name: str) -> None:
        own: Callable[..., Any] = getattr(owner, name)

        def counting(*given: Any, **named: Any) -> Any:
            found[name] += 1
            return own(*given, **named)

        monkeypatch.setattr(owner, name, counting)

    count(model, "find_template")
    count(native_step.NativeStep, "_built")
    count(timing, "race")
    count(constrain, "_Vocabulary")
    constrain._tokens.cache_clear()
    return found


def asked(server: Running, **change: Any) -> None:
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={**CHAT, **change}, timeout=60)
    assert answer.status_code == 200, answer.text


def test_threads_without_work_release_their_teams(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that has loaded the models, and a worker when it has nothing to do."""
    released = list[str]()
    for module in (serving_service, worker):
        monkeypatch.setattr(module, "release_team", lambda: released.append(threading.current_thread().name))
    served = ServedModel("rope", runs["rope"], Limits())
    assert len(list(Service({"rope": served}, Limits()).warm())) == 1
    served.worker.stop()
    assert Counter(released) == {threading.current_thread().name: 1, "model rope": 1}


def test_the_first_request_prepares_nothing(tmp_path: Path, counted: Counter[str]) -> None:
    run = text_run(tmp_path, tokenizer=folder_of(tmp_path, CHATML, True))
    with serving({"chat": run}) as server:
        warm = Counter(counted)
        assert warm["find_template"] == warm["_Vocabulary"] == 1
        assert warm["_built"]
        asked(server)
        asked(server, guided_regex="[0-9]+", messages=[{"role": "system", "content": "dogs"}, *CHAT["messages"]])
        assert counted == warm
        text = httpx.get(f"{server.url}/metrics").text
    assert 'qkv_shared_prompts_total{model="chat"} 0.0' in text  # the text that warms is forgotten
    assert 3 <= metric(server, "qkv_generated_tokens_total", model="chat") <= 6


def test_each_kind_of_model_is_warm(tmp_path: Path, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    written = Counter[int]()
    step = requests.RequestQueue.step

    def counting(queue: requests.RequestQueue) -> Any:
        pieces = step(queue)
        written[id(queue)] += sum(len(piece.tokens) for piece in pieces)
        return pieces

    monkeypatch.setattr(requests.RequestQueue, "step", counting)
    several = {**runs, "other": translation_run(tmp_path)}
    with serving(several) as server:
        for served in server.service.models.values():
            assert written[id(served.worker.requests)] == 8, served.name
            counts = served.worker.counts
            assert (counts.running, counts.waiting, counts.nbytes, counts.kept, counts.hits) == (0, 0, 0, 0, 0)


def test_the_port_opens_when_the_models_are_warm(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service({"rope": ServedModel("rope", runs["rope"], Limits())}, Limits())
    lines, refused = list[str](), list[bool]()

    class Ending:
        def run(self, sockets: list[socket.socket]) -> None:
            with socket.create_connection(sockets[0].getsockname(), timeout=5):
                lines.append("open")

    monkeypatch.setattr(listen, "http_server", lambda *given: Ending())
    with listen.open_socket("127.0.0.1", 0) as opened:

        def tell(line: str) -> None:
            if not lines:
                with pytest.raises(ConnectionRefusedError), socket.create_connection(opened.getsockname(), timeout=5):
                    pass
                refused.append(True)
            lines.append(line)

        listen.serve(service, Access(), opened, tell=tell)
        assert refused == [True]
        assert lines[0].startswith("rope: warm after ")
        assert lines[1].startswith(f"serving at {listen.url_of(opened)} ")
        assert lines[2:] == ["open"]
    service.models["rope"].worker.stop()


def test_a_port_that_is_taken_meanwhile_is_told() -> None:
    with listen.open_socket("127.0.0.1", 0) as opened, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(opened.getsockname())
        other.listen()
        with pytest.raises(UserError, match=r"the server cannot listen at .*; give another --port"):
            listen.listen(opened)


def test_states_are_walked_by_the_thread_that_owns_them(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while texts are written and figures are asked for; what is told at the end is what is there."""
    threads = set[str]()

    def recording(own: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*given: Any) -> Any:
            threads.add(threading.current_thread().name)
            return own(*given)

        return recorded

    for owner in (prefixes, requests):
        monkeypatch.setattr(owner, "nbytes", recording(owner.nbytes))
    with serving({"rope": runs["rope"]}) as server:
        queue = server.service.models["rope"].worker.requests
        assert queue is not None
        body = {"prompt": "the quick brown fox jumps over", "max_tokens": 300, "n": 2, "ignore_eos": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json={**body, "stream": True}, timeout=60) as answer:
            for i, _ in enumerate(answer.iter_lines()):
                if not i % 100:
                    assert 'qkv_state_bytes{model="rope"}' in httpx.get(f"{server.url}/metrics").text
        counts = server.service.models["rope"].worker.counts
        assert (counts.running, counts.nbytes, counts.kept) == (0, queue.nbytes, queue.prefixes.nbytes)
        assert counts.kept > 0
        threads.discard(threading.current_thread().name)  # the line above
    assert threads == {"model rope"}
