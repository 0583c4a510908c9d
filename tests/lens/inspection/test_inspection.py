"""Inspections: what the page holds equals what the views compute, and bad input is one sentence."""

from __future__ import annotations

import base64
import html
import http.client
import json
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.lens.inspection.forms import decoder
from tests.serving.models import translation_run

import qkv
from qkv.cli.main import main
from qkv.lens.capture.edits import replace
from qkv.lens.inspection.inspection import Inspection, inspect_run
from qkv.lens.inspection.local_server import LocalServer
from qkv.lens.inspection.packing import ArrayBlock
from qkv.lens.inspection.views import VIEWS
from qkv.lens.views.attention_maps import attention_maps
from qkv.runs.run import Run
from qkv.system.errors import UserError

TEXT = {"text": "the quick brown fox"}


def unpack(view: Any, entry: dict[str, Any]) -> np.ndarray:
    """Array of a view, as the page reads it."""
    content = zlib.decompress(base64.b64decode(view["block"]))
    form = np.dtype("<f4" if entry["form"] == "f4" else "u1")
    values = np.frombuffer(content, form, int(np.prod(entry["shape"])), entry["at"]).reshape(entry["shape"])
    return values if entry["form"] == "f4" else entry["scale"] * (values / 255.0) ** 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Decoder with RoPE of two layers."""
    return decoder(tmp_path_factory.mktemp("runs") / "rope", "rope")


def test_the_page_holds_the_weights_of_every_head(run: Run) -> None:
    inspection = inspect_run(run, TEXT)
    view = inspection.view("attention")
    maps = attention_maps(run.model, inspection.subject.read.signal)
    assert [entry["path"] for entry in view["data"]["maps"]] == [each.path for each in maps]
    for entry, each in zip(view["data"]["maps"], maps, strict=True):
        error = np.abs(unpack(view, entry["weights"]) - each.weights[0].numpy())
        assert error.max() <= entry["weights"]["scale"] / 255  # one byte a weight


def test_answers_are_the_model_s_logits(run: Run) -> None:
    view = inspect_run(run, TEXT).view("answers")
    ids = torch.tensor([run.tokenizer.encode(TEXT["text"])])
    logits = run.model(ids)[0][0, -1, : run.tokenizer.vocab_size].detach()
    np.testing.assert_allclose(unpack(view, view["data"]["logits"]), logits, rtol=1e-5, atol=1e-6)
    assert view["data"]["ids"][0] == int(logits.argmax())
    assert view["data"]["names"][0] == view["data"]["target"]


def test_a_head_that_is_taken_out_has_its_mean(run: Run) -> None:
    path = "blocks.1.branches.0"
    view = inspect_run(run, TEXT, ablated=[(path, 2)]).view("answers")

    def mean(value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        value[:, 2] = value[:, 2].mean(1, keepdim=True)
        return value

    ids = torch.tensor([run.tokenizer.encode(TEXT["text"])])
    expected = run.model(ids, tap=replace(f"{path}.head_outputs", mean))[0][0, -1].detach()
    np.testing.assert_allclose(
        unpack(view, view["data"]["logits"]), expected[: run.tokenizer.vocab_size], rtol=1e-5, atol=1e-6
    )
    assert run.model.tap is None


def test_bytes_keep_small_and_large_weights() -> None:
    block = ArrayBlock()
    values = torch.tensor([[0.0, 1e-4, 1e-3, 0.5, 1.0, float("nan")]])
    entry, exact = block.add_shares(values), block.add(torch.tensor([1.25]))
    view = {"block": block.text()}
    np.testing.assert_allclose(unpack(view, entry)[0], [0, 1e-4, 1e-3, 0.5, 1.0, 0], atol=4e-3)
    assert unpack(view, entry)[0, 1] > 0
    assert unpack(view, exact)[0] == 1.25


def test_a_page_is_one_file_without_requests(run: Run, tmp_path: Path) -> None:
    inspection = qkv.inspect(run, TEXT["text"])
    page = inspection.save(tmp_path / "page.html").read_text()
    assert "connect-src 'none'" in html.unescape(page)
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    held = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert list(held["views"]) == list(VIEWS)
    assert "<iframe" in inspection._repr_html_()


def test_a_source_and_its_answer_have_labels(tmp_path: Path) -> None:
    run = translation_run(tmp_path)
    sides = inspect_run(run, {"source": "the quick fox"}, answer="the dog").sides
    assert "".join(sides["encoder"]["labels"]).startswith("the quick fox")
    assert "the dog" in "".join(sides["model"]["labels"])


def test_narrow_weights_are_computed_in_fp32(run: Run, tmp_path: Path) -> None:
    narrow = qkv.quantize(qkv.load(qkv.save(run.model, tmp_path / "wide", run.tokenizer)), tmp_path / "narrow").run
    inspection: Inspection = inspect_run(narrow, TEXT)
    assert "parts" in inspection.view("attribution")["data"]
    assert inspection.subject.run is not narrow  # the model that was given stays as it is


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"text": None}, "'text' is missing"),
        ({"text": "fox", "row": 0}, "give one of them"),
        ({"text": "fox", "colour": "red"}, "'colour' is no input of it"),
        ({"text": "fox", "ablate": [("blocks.9.branches.0", 0)]}, "no branch 'blocks.9.branches.0' with heads"),
        ({"text": "fox", "ablate": [("blocks.0.branches.0", 4)]}, "the heads 0 to 3"),
        ({"text": "fox", "position": 3}, "has 3 positions"),
        ({"text": "fox", "position": "x"}, "'x' given"),
        ({"text": "fox", "ablate": ["blocks.0.branches.0:0"]}, "a head is a pair"),
        ({"text": "fox", "ablate": "blocks.0.branches.0:0"}, "a head is a pair"),
        ({"text": "fox " * 600}, "views show at most 2,048; give a shorter one"),
        ({"text": "fox", "answer": "dog"}, "an answer is read only by"),
    ],
)
def test_bad_input_is_one_sentence(run: Run, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        qkv.inspect(run, **arguments)
    with pytest.raises(UserError, match="views: 'atention' given"):
        inspect_run(run, TEXT).view("atention")


@pytest.fixture
def server(run: Run) -> Iterator[LocalServer]:
    """Server of the page of one input."""
    with LocalServer(inspect_run(run, TEXT)) as local:
        threading.Thread(target=local.serve_forever, daemon=True).start()
        yield local
        local.shutdown()


def ask(server: LocalServer, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    """Status and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    text = body if isinstance(body, str) or body is None else json.dumps(body)
    connection.request(method, path, text, {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_a_page_that_is_served_computes_views(server: LocalServer) -> None:
    status, page = ask(server, "GET", "/")
    assert status == 200
    assert "connect-src 'self'" in html.unescape(page)
    body = {"row": {"text": "the dog"}, "ablated": [["blocks.0.branches.0", 1]], "views": ["answers", "lens"]}
    status, text = ask(server, "POST", "/view", body)
    answer = json.loads(text)
    assert status == 200
    assert "".join(answer["sides"]["model"]["labels"]) == "the dog"
    assert answer["ablated"] == [["blocks.0.branches.0", 1]]
    assert list(answer["views"]) == ["answers", "lens"]


def test_requests_of_other_sites_are_refused(server: LocalServer) -> None:
    body = {"row": {}, "ablated": [], "views": ["answers"]}
    assert ask(server, "POST", "/view", body, Origin="http://example.org")[0] == 403
    assert ask(server, "GET", "/", Host="example.org")[0] == 403
    assert ask(server, "GET", "/data")[0] == 404


@pytest.mark.parametrize(
    "body", ["", "[]", "{", {"row": {}}, {"row": {}, "ablated": [1], "views": []}, {"row": {"text": 3, "x": 1}}]
)
def test_a_bad_request_is_answered(server: LocalServer, body: Any) -> None:
    status, text = ask(server, "POST", "/view", body)
    assert status == 400
    assert json.loads(text)["error"]


def test_the_command_writes_a_page(straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["inspect", str(straight), "aba", "--views", "answers,lens", "--out", str(page)]) == 0
    assert f"page: {page}" in capsys.readouterr().out
    for wrong in (["--views", "lense"], ["--ablate", "3"], ["--row", "1"], ["--input", "x"]):
        assert main(["inspect", str(straight), "aba", *wrong, "--out", str(tmp_path / "no.html")]) == 2
    assert not (tmp_path / "no.html").exists()
    assert main(["inspect", str(straight), "--row", "0", "--views", "attention", "--out", str(page)]) == 0
