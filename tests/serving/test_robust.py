"""Clients that leave, do not read or come in numbers, and the end of the server: the others are answered."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch
from tests.serving.conftest import Running, serving
from tests.serving.test_completions import alone
from tests.serving.test_errors import refused

from qkv.generation.decode.speculate import Speculator
from qkv.runs.run import Run
from qkv.serving.engine.model import ServedModel
from qkv.serving.limits import UNREAD, Limits
from qkv.spec.generation import Speculation
from qkv.system.errors import UserError

LONG = {"model": "rope", "prompt": "the", "max_tokens": 1500, "temperature": 0, "ignore_eos": True}


def posted(server: Running, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)


@contextlib.contextmanager
def line_of(
    server: Running, receive: int | None = None, path: str = "/v1/completions", **body: Any
) -> Iterator[socket.socket]:
    """Connection on which a completion is asked for. receive: bytes of its buffer."""
    data = json.dumps(body).encode()
    with socket.socket() as line:
        if receive:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        line.settimeout(60)
        line.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        head = "Host: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close"
        line.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        yield line


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.005)


def metric(server: Running, name: str, **labels: str) -> float:
    return server.service.metrics.registry.get_sample_value(name, labels) or 0.0


def events(body: bytes) -> list[Any]:
    """Contents of the events of a response with chunks or without."""
    found = [line[6:] for line in body.replace(b"\r\n", b"\n").split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(each) for each in found if each != b"[DONE]"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_who_leaves_ends_its_request(runs: dict[str, Run], stream: bool) -> None:
    with serving({"rope": runs["rope"]}) as server:
        worker = server.service.models["rope"].worker
        with line_of(server, **LONG, stream=stream) as line:
            if stream:
                line.recv(100)
            until(lambda: worker.counts.running == 1)
        until(lambda: worker.counts.running == 0)
        until(lambda: metric(server, "qkv_texts_total", model="rope", reason="cancelled") == 1)
        assert worker.counts.nbytes == worker.counts.kept  # that of 16 tokens or more is kept for other texts
        assert metric(server, "qkv_generated_tokens_total", model="rope") < LONG["max_tokens"]
        assert posted(server, **{**LONG, "max_tokens": 3}).status_code == 200


def test_nothing_is_written_to_a_client_who_has_left(runs: dict[str, Run], logged: list[str]) -> None:
    """Also of many events that are ready at once, such as the openings of the texts of a chat: a few more writes, and
    the event loop logs that the connection is lost.
    """
    body = {"messages": [{"role": "user", "content": "the"}], "n": 64, "max_tokens": 200, "ignore_eos": True}
    with serving({"rope": runs["rope"]}) as server:
        for _ in range(5):
            with line_of(server, path="/v1/chat/completions", **body, stream=True) as line:
                line.recv(100)
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed at once
        until(lambda: metric(server, "qkv_texts_total", model="rope", reason="cancelled") == 5 * 64)
    assert logged == []


def test_a_reader_who_does_not_read_holds_up_nobody_and_loses_nothing(runs: dict[str, Run]) -> None:
    asked = {**LONG, "max_tokens": 400}
    with serving({"rope": runs["rope"]}, sent=4096) as server:
        worker = server.service.models["rope"].worker
        with line_of(server, 4096, **asked, stream=True, logprobs=20) as line:
            until(lambda: worker.counts.running == 1 and len(worker._open) == 1)
            (mailbox,) = set(worker._open.values())
            for _ in range(3):
                assert posted(server, **{**LONG, "max_tokens": 5}).status_code == 200
            until(lambda: worker.counts.running == 0)
            assert 0 < len(mailbox._unread) <= UNREAD
            body = b"".join(iter(lambda: line.recv(1 << 16), b""))
    choices = [event["choices"][0] for event in events(body)]
    expected = alone(runs["rope"], "the", max_new_tokens=400, temperature=0.0)
    assert "".join(choice["text"] for choice in choices) == expected
    assert sum(len(choice["logprobs"]["tokens"]) for choice in choices) == 400


def test_clients_at_the_same_time_get_the_texts_that_they_get_alone(server: Running, runs: dict[str, Run]) -> None:
    prompts = ["the", "quick brown", "fox jumps over", "a"]
    asked = [
        (name, prompt, 5 + 7 * i) for name in ("rope", "bytes", "linear", "gru") for i, prompt in enumerate(prompts)
    ]

    def text(name: str, prompt: str, tokens: int) -> str:
        body = {"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return posted(server, **body).json()["choices"][0]["text"]

    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(lambda each: text(*each), asked))
    expected = [alone(runs[name], prompt, max_new_tokens=n, temperature=0.0) for name, prompt, n in asked]
    assert found == expected


def look_up(run: Run) -> Speculator:
    return Speculator(Speculation(num_tokens=3))


def with_draft(run: Run) -> Speculator:
    """The draft is another model of random weights, so that some proposals are rejected."""
    draft = copy.deepcopy(run.model)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    return Speculator(Speculation(kind="draft", num_tokens=3, adaptive=False), draft)


@pytest.mark.parametrize("speculation", [look_up, with_draft])
@pytest.mark.parametrize("name", ["rope", "gru"])
def test_speculation_changes_no_text(runs: dict[str, Run], name: str, speculation: Callable[[Run], Speculator]) -> None:
    """Also of a model whose state cannot drop positions, beside texts with a form."""
    with serving({name: runs[name]}, speculation=speculation) as server:
        bodies = [{**LONG, "model": name, "prompt": prompt, "max_tokens": 60} for prompt in ("the", "a fox a")]
        bodies.append({**bodies[0], "guided_regex": "(the |fox ){9}", "temperature": 1.0, "seed": 2})
        with ThreadPoolExecutor(len(bodies)) as pool:
            found = [each.json()["choices"][0]["text"] for each in pool.map(lambda b: posted(server, **b), bodies)]
        expected = [alone(runs[name], b["prompt"], max_new_tokens=60, temperature=0.0) for b in bodies[:2]]
        assert found[:2] == expected
        assert re.fullmatch("(the |fox ){9}", found[2])
        requests = server.service.models[name].worker.requests
        assert requests is not None
        assert requests.speculator is not None
        assert requests.speculator.counts.proposed


def test_a_draft_that_cannot_propose_is_refused_before_the_server_begins(runs: dict[str, Run]) -> None:
    other = Speculator(Speculation(kind="draft"), runs["bytes"].model)
    with pytest.raises(UserError, match="the draft model has a vocabulary of"):
        ServedModel("rope", runs["rope"], Limits(), lambda run: other)


def test_a_full_queue_is_told_and_passes(runs: dict[str, Run]) -> None:
    endless = {**LONG, "max_tokens": 30_000}  # it runs until its client leaves
    with serving({"rope": runs["rope"]}, Limits(batch=1, queue=1, tokens=40_000)) as server:
        counts = server.service.models["rope"].worker
        refused(posted(server, **{**LONG, "n": 2}), 400, "2 texts are requested, but the queue has room for 1")
        with line_of(server, **endless, stream=True) as first:
            first.recv(10)
            until(lambda: counts.counts.running == 1)  # and does not wait itself
            with line_of(server, **{**LONG, "max_tokens": 2}) as second:
                until(lambda: counts.counts.waiting == 1)
                answer = posted(server, **LONG)
                assert refused(answer, 429, "1 requests wait, and the queue has room for 1")["code"] == "queue_full"
                assert answer.headers["retry-after"] == "1"
                first.close()
                assert second.recv(100).startswith(b"HTTP/1.1 200")


def test_a_budget_of_bytes_makes_requests_wait_and_refuses_what_never_fits(runs: dict[str, Run]) -> None:
    with serving({"rope": runs["rope"]}, Limits(memory=100_000)) as server:
        refused(posted(server, **LONG), 400, "but the budget is 100,000; ask for fewer tokens")
        answer = posted(server, **{**LONG, "max_tokens": 20, "n": 12})
        assert len(answer.json()["choices"]) == 12


def test_the_time_of_a_request_is_limited(runs: dict[str, Run]) -> None:
    with serving({"rope": runs["rope"]}, Limits(seconds=0.05)) as server:
        assert refused(posted(server, **LONG), 504, "longer than this server allows")["type"] == "server_error"
        streamed = posted(server, **LONG, stream=True)
        assert streamed.status_code == 200
        assert events(streamed.content)[-1]["error"]["code"] == "timeout"
        assert not streamed.content.endswith(b"[DONE]\n\n")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_ends_the_requests_and_not_the_server(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"rope": runs["rope"]}) as server:
        worker = server.service.models["rope"].worker

        def broken() -> Any:
            raise ZeroDivisionError("nothing left")

        monkeypatch.setattr(worker.requests, "step", broken)
        refused(
            posted(server, **LONG), 500, "this is a bug in qkv, not in the request: ZeroDivisionError: nothing left"
        )
        assert posted(server, **{**LONG, "max_tokens": 3}).status_code == 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_text_from_before_a_fault_gets_into_a_later_answer(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({"rope": runs["rope"]}) as server:
        worker = server.service.models["rope"].worker
        for steps in (0, 6):  # requests are numbered from 0 after a fault, so the second one ends the number 0
            step, calls = worker.requests.step, iter(range(steps))  # type: ignore[union-attr]

            def failing(step: Any = step, calls: Any = calls) -> Any:
                if next(calls, None) is None:
                    raise ZeroDivisionError("nothing left")
                return step()

            monkeypatch.setattr(worker.requests, "step", failing)
            assert posted(server, **LONG).status_code == 500
        short = {**LONG, "max_tokens": 3, "temperature": 0}
        answers = [posted(server, **short).json()["choices"][0]["text"] for _ in range(2)]
    assert set(answers) == {alone(runs["rope"], "the", max_new_tokens=3, temperature=0.0)}


def test_the_end_of_the_server_waits_for_what_it_began(runs: dict[str, Run]) -> None:
    found: list[httpx.Response] = []
    with serving({"rope": runs["rope"]}, Limits(batch=1, tokens=4_000)) as server:
        worker = server.service.models["rope"].worker
        both, step = threading.Event(), worker._step
        # A busy machine may answer one request before the other arrives, so steps are slow until both have.
        worker._step = lambda queue: (both.wait(0.05), step(queue))[1]
        bodies = [{**LONG, "max_tokens": 500}, {**LONG, "max_tokens": 80, "stream": True}]
        threads = [threading.Thread(target=lambda body=body: found.append(posted(server, **body))) for body in bodies]
        for thread in threads:
            thread.start()
        until(lambda: worker.counts.running + worker.counts.waiting == 2)  # one runs, the other waits
        both.set()
        server.server.should_exit = True
        for thread in threads:
            thread.join(30)
        until(lambda: not worker._thread.is_alive())
        with pytest.raises(httpx.ConnectError):
            posted(server, **LONG)
    whole, streamed = sorted(found, key=lambda answer: "event-stream" in answer.headers["content-type"])
    texts = [alone(runs["rope"], "the", max_new_tokens=tokens, temperature=0.0) for tokens in (500, 80)]
    assert whole.json()["choices"][0]["text"] == texts[0]
    assert "".join(event["choices"][0]["text"] for event in events(streamed.content)) == texts[1]


def test_metrics_are_those_of_the_requests(runs: dict[str, Run]) -> None:
    with serving({"rope": runs["rope"]}) as server:
        posted(server, **{**LONG, "max_tokens": 7})
        posted(server, prompt=3)
        text = httpx.get(f"{server.url}/metrics").text
    assert 'qkv_generated_tokens_total{model="rope"} 7.0' in text
    assert 'qkv_prompt_tokens_total{model="rope"} 3.0' in text
    assert 'qkv_texts_total{model="rope",reason="length"} 1.0' in text
    assert 'qkv_http_requests_total{path="/v1/completions",status="200"} 1.0' in text
    assert 'qkv_http_requests_total{path="/v1/completions",status="400"} 1.0' in text
    assert 'qkv_first_token_seconds_count{model="rope"} 1.0' in text
    assert 'qkv_requests_running{model="rope"} 0.0' in text


def test_prompts_that_begin_alike_are_counted(runs: dict[str, Run]) -> None:
    prompt = "the quick brown fox jumps over"
    with serving({"rope": runs["rope"], "gru": runs["gru"]}) as server:
        for name in ("rope", "gru"):
            for end in (" the", " a", " lazy dogs"):
                asked = {"prompt": prompt + end, "max_tokens": 5, "temperature": 0.0}
                answer = posted(server, model=name, **asked).json()
                assert answer["choices"][0]["text"] == alone(
                    runs[name], prompt + end, max_new_tokens=5, temperature=0.0
                )
        text = httpx.get(f"{server.url}/metrics").text
    assert 'qkv_shared_prompts_total{model="rope"} 2.0' in text
    tokens = 2 * len(prompt) + 2  # and the space after it, which all three share
    assert f'qkv_shared_prompt_tokens_total{{model="rope"}} {tokens}.0' in text
    assert 'qkv_shared_prompts_total{model="gru"} 1.0' in text
    assert 'qkv_kept_state_bytes{model="rope"} 0.0' not in text
