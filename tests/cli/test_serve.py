"""``qkv serve``: what it refuses before it serves, and a process that ends at a signal after what it began."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from tests.cli.conftest import Call

NO_CHAT = "; no chat, since the model has no chat template (--chat-template FILE)"


def test_one_sentence_before_it_serves(qkv: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = qkv("serve", run, "--port", port)
    assert (said.code, said.out) == (2, "")
    assert f"the server cannot listen at 127.0.0.1, port {port}: " in said.err
    assert "give another --port" in said.err
    for given, sentence in (
        ([run, run], "the name 'run' is given twice; write NAME=RUN with another name for each"),
        ([f"={run}"], "has no name before '='"),
        ([tmp_path / "none"], "there is no run folder"),
        ([run, "--port", "70000"], "--port"),
        ([run, "--host", "203.0.113.1"], "the server cannot listen at 203.0.113.1"),  # of no machine
        ([run, "--draft-tokens", 3], "--draft-tokens: it needs a draft model; name its run with --draft"),
        ([run, "--lookup", 0], "--lookup: 0"),
        ([run, "--lookup", 3, "--draft", run], "--draft: tokens are proposed either by --lookup or by a draft model"),
        ([run, "--draft", tmp_path / "none"], "there is no run folder"),
    ):
        said = qkv("serve", *given)
        assert said.code == 2
        assert sentence in said.err
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    said = qkv("serve", run)
    assert said.code == 2
    assert "serving needs uvicorn, which is not installed; pip install 'qkv[serve]'" in said.err


def test_a_draft_of_another_vocabulary_is_refused(qkv: Call, folder: Path, run: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("pack my box with five dozen liquor jugs! " * 40)
    asked = (f"data.source={tmp_path / 'other.txt'}", "training.steps=1", "--out", tmp_path / "other")
    assert qkv("train", folder / "tiny.yaml", *asked).code == 0
    said = qkv("serve", run, "--draft", tmp_path / "other", "--port", 0)
    assert (said.code, said.out) == (2, "")
    assert "the draft model has another vocabulary: only one of the two has the token" in said.err


def test_adapters_of_one_base_share_its_weights(
    qkv: Call, folder: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = (f"start={run}", "training.adapt=lora(2)", "training.steps=2", "--out", tmp_path / "other")
    assert qkv("train", folder / "tiny.yaml", *asked).code == 0
    monkeypatch.setattr("qkv.serving.http.listen.serve", lambda *given: None)
    said = qkv("serve", run, f"a={tmp_path / 'other'}", f"b={tmp_path / 'other'}", "--port", 0)
    first, *others = said.out.splitlines()
    held, apart = re.fullmatch(r"weights: (.*) \(shared between models; (.*) without sharing\)", first).groups()  # type: ignore[union-attr]
    assert float(apart.split()[0]) > 2.5 * float(held.split()[0])
    assert others[:3] == [f"{name}: completions, embeddings, rerank{NO_CHAT}" for name in ("run", "a", "b")]
    assert "weights" not in qkv("serve", run, "--port", 0).out


def test_the_libraries_of_the_server_are_imported_by_it_alone() -> None:
    names = "{'starlette', 'uvicorn', 'jinja2'}"
    code = f"import sys, qkv, qkv.cli.main, qkv.cli.inference.serve; sys.exit(bool({names} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or "they were imported"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_after_what_it_began(run: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "qkv", "serve", f"small={run}", "--port", "0"]
    environment = {**os.environ, "QKV_API_KEY": "secret"}
    with ExitStack() as stack:
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        served = stack.enter_context(subprocess.Popen(command, env=environment, **piped))
        stack.callback(served.kill)  # else a failure would wait for the server
        assert served.stdout is not None
        lines = iter(served.stdout.readline, "")
        assert next(lines) == f"small: completions, embeddings, rerank{NO_CHAT}\n"
        url = next(line.split()[2] for line in lines if line.startswith("serving at"))
        body = {"prompt": "the", "max_tokens": 12, "stream": True, "stream_options": {"include_usage": True}}
        headers = {"authorization": "Bearer secret"}
        events = []
        with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=60) as answer:
            for line in answer.iter_lines():
                if not events:
                    served.send_signal(number)
                events += [line] if line else []
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["usage"]["completion_tokens"] == 12
        assert served.wait(30) == 0
        assert served.stderr is not None
        assert served.stderr.read() == ""
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
