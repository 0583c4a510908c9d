"""Values and edits through ``/v1/inspect`` are those of the model itself."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.serving.conftest import Running, serving

from qkv.generation.decode.sample import generate
from qkv.lens.capture.edits import ablate, replace, steer
from qkv.lens.capture.regions import Region
from qkv.lens.record import record
from qkv.runs.run import Run
from qkv.serving.limits import Limits
from qkv.spec.generation import Generation

TEXT = "the quick"
HEAD = "blocks.0.branches.0.head_outputs"


@pytest.fixture(scope="module")
def looking(runs: dict[str, Run]) -> Iterator[Running]:
    """A server that answers inspections."""
    with serving({name: runs[name] for name in ("rope", "gru", "translation")}, Limits(inspect=True)) as running:
        yield running


def ask(server: Running, **body: Any) -> dict[str, Any]:
    """Answer of the server; that of an error has its status as ``status``."""
    request = urllib.request.Request(
        f"{server.url}/v1/inspect", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return {**json.loads(error.read())["error"], "status": error.code}


@pytest.mark.parametrize("name", ["rope", "gru", "translation"])
@torch.no_grad()
def test_values_are_those_of_the_model(looking: Running, runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    point = "encoder.norm.output" if name == "translation" else "norm.output"
    answer = ask(looking, model=name, input=TEXT, points=[point])
    ids = torch.tensor([answer["tokens"]])
    expected = run.model.encode(ids).vectors[0] if name == "translation" else record(run.model, ids, point)[point]
    value = answer["points"][point]
    assert value["shape"] == list(expected.shape[1:])
    np.testing.assert_allclose(value["values"], expected[0].flatten(), rtol=0, atol=1e-5)
    assert len(answer["next"]) == 5
    packed = ask(looking, model=name, input=answer["tokens"] if name != "translation" else TEXT, points=[point],
                 encoding_format="base64", top=0)  # fmt: skip
    read = np.frombuffer(base64.b64decode(packed["points"][point]["values"]), "<f4")
    np.testing.assert_allclose(read, expected[0].flatten(), rtol=0, atol=1e-5)
    assert "next" not in packed


EDITS = [
    ({"point": HEAD, "heads": [1]}, ablate(Region(HEAD, heads=[1]))),
    ({"point": HEAD, "by": "positions", "positions": [2]}, ablate(Region(HEAD, positions=[2]), "positions")),
    (
        {"point": "blocks.1.branches.0.residual_before", "by": "steer", "vector": [0.5] * 16, "factor": 3},
        steer("blocks.1.branches.0.residual_before", torch.full((16,), 0.5), 3),
    ),
    ({"point": "norm.output", "by": "replace", "vector": [1.0]}, replace("norm.output", 1.0)),
]


@pytest.mark.parametrize("edit", range(len(EDITS)))
@torch.no_grad()
def test_edits_are_those_of_the_model(looking: Running, runs: dict[str, Run], edit: int) -> None:
    model, (body, tap) = runs["rope"].model, EDITS[edit]
    answer = ask(looking, model="rope", input=TEXT, edits=[body], points=["head.output"], max_tokens=6)
    ids, plain = answer["tokens"], ask(looking, model="rope", input=TEXT, points=["head.output"])
    with model.tapped(tap):
        expected = model(torch.tensor([ids]))[0][0]
        (written,) = generate(model, [ids], Generation(max_new_tokens=6, temperature=0.0, stop_token_ids=(0,)))
    np.testing.assert_allclose(answer["points"]["head.output"]["values"], expected.flatten(), rtol=0, atol=1e-5)
    assert answer["next"][0]["id"] == int(expected[-1].argmax())
    assert answer["next"][0]["logprob"] == pytest.approx(float(expected[-1].log_softmax(-1).max()), abs=1e-5)
    assert answer["points"] != plain["points"]
    if "\n" not in answer["text"]:
        assert runs["rope"].vocabulary.tokenizer.decode(written).startswith(answer["text"][:1])


def test_hidden_scores_are_null_and_other_requests_see_no_edit(looking: Running, runs: dict[str, Run]) -> None:
    point = "blocks.0.branches.0.scores"
    client = looking.client()
    plain = client.completions.create(model="rope", prompt=TEXT, max_tokens=8, temperature=0).choices[0].text
    answer = ask(looking, model="rope", input=TEXT, points=[point], edits=[{"point": "norm.output"}])
    value = np.array(answer["points"][point]["values"], dtype=object).reshape(answer["points"][point]["shape"])
    assert value[0, 0, 1] is None
    assert isinstance(value[0, 1, 0], float)
    again = client.completions.create(model="rope", prompt=TEXT, max_tokens=8, temperature=0).choices[0].text
    assert again == plain


REFUSED: dict[str, tuple[int, dict[str, Any]]] = {
    "the model has no point 'nothing'": (400, {"points": ["nothing"]}),
    "heads cannot be selected at 'norm.output'": (400, {"edits": [{"point": "norm.output", "heads": [0]}]}),
    "numbered from 0; 9 is not one of them": (400, {"edits": [{"point": HEAD, "heads": [9]}]}),
    "an edit by 'steer' needs a vector": (400, {"edits": [{"point": HEAD, "by": "steer"}]}),
    "an edit by 'zero' reads no vector": (400, {"edits": [{"point": HEAD, "vector": [1]}]}),
    "does not fit its shape": (400, {"edits": [{"point": HEAD, "by": "replace", "vector": [1, 2, 3]}]}),
    "the token 99999 is outside the vocabulary": (400, {"input": [99999]}),
    "allowed: a text or a list of ids": (400, {"input": [[1]]}),
    "allowed: 1 to": (400, {"input": [1] * 5000}),
    "there is no model 'nothing'": (404, {"model": "nothing"}),
    "does not continue texts": (400, {"model": "translation", "max_tokens": 3}),
    "max_tokens": (400, {"max_tokens": 1000}),
    "points": (400, {"points": ["weights"] * 65}),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_one_sentence_for_what_is_refused(looking: Running, sentence: str) -> None:
    status, body = REFUSED[sentence]
    answer = ask(looking, **{"model": "rope", "input": TEXT, **body})
    assert answer["status"] == status
    assert sentence in answer["message"]
    assert "\n" not in answer["message"]


def test_more_numbers_than_a_response_may_hold_are_refused(looking: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.serving.http.inspections.MAX_VALUES", 100)
    answer = ask(looking, model="rope", input=TEXT, points=["norm.output"])
    assert answer["status"] == 400
    assert "more than 100 numbers" in answer["message"]
    assert ask(looking, model="rope", input=TEXT)["points"] == {}


def test_a_server_inspects_only_if_it_is_told_to(server: Running) -> None:
    answer = ask(server, model="rope", input=TEXT, points=["norm.output"])
    assert answer["status"] == 403
    assert "start it with --inspect" in answer["message"]
