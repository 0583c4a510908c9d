"""One JSON error in OpenAI's form for every request that cannot be answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AuthenticationError
from tests.serving.conftest import Running, serving
from tests.serving.models import characters, run_of

from qkv.runs.run import Run
from qkv.serving.http.app import Access
from qkv.serving.limits import Limits

COMPLETION = {"model": "rope", "prompt": "the", "max_tokens": 4}
JSON = {"content-type": "application/json"}


def posted(server: Running, content: bytes, path: str = "/v1/completions", **headers: str) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", content=content, headers={**JSON, **headers}, timeout=60)


def refused(answer: httpx.Response, status: int, sentence: str) -> dict[str, Any]:
    """The error of an answer, which has this status and sentence."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert sentence in error["message"]
    return error


@pytest.mark.parametrize(
    ("change", "param", "sentence"),
    [
        ({"temperature": -1}, "temperature", "-1 given"),
        ({"temperature": "hot"}, "temperature", "'hot' given"),
        ({"temperature": True}, "temperature", "True given"),
        ({"top_p": 0}, "top_p", "0 given"),
        ({"n": 0}, "n", "0 given"),
        ({"n": 1000}, "n", "1000 given"),
        ({"n": 100, "prompt": ["the", "fox"]}, "n", "100 texts of 2 prompts given; allowed: at most 128"),
        ({"max_tokens": -1}, "max_tokens", "-1 given"),
        ({"max_tokens": 3000}, "max_tokens", "with 3000 new ones exceed the limit of 2048 tokens"),
        ({"prompt": "the fox" * 400, "max_tokens": None}, None, "2800 tokens, which leave no room for an answer"),
        ({"seed": 2**63}, "seed", "given"),
        ({"seed": 10**400}, "seed", "given"),
        ({"stop": ["a"] * 17}, "stop", "17 stop strings given; allowed: at most 16"),
        ({"stop": "a" * 257}, "stop", "given"),
        ({"stop": 3}, "stop", "3 given"),
        ({"prompt": "Ω"}, "prompt", "'Ω'"),
        ({"prompt": [1, 9999]}, None, "9999"),
        ({"prompt": [1, True]}, "prompt", "given; allowed: a text or a list of ids"),
        ({"prompt": {"a": 1}}, "prompt", "allowed: a text, a list of ids, or a list of these"),
        ({"prompt": []}, "prompt", "allowed: a text, a list of ids, or a list of these"),
        ({"logprobs": 21}, "logprobs", "21 given"),
        ({"logprobs": 1, "echo": True, "model": "translation"}, "echo", "the prompt of a model with an encoder has no"),
        ({"best_of": 3}, "best_of", "3 given, but all n texts are returned"),
        ({"suffix": "x"}, "suffix", "this server does not support it; allowed: null"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "allowed: numbers by token id"),
        ({"logit_bias": {str(i): 1 for i in range(3000)}}, "logit_bias", "biases of 3,000 tokens given; allowed"),
        ({"logit_bias": {"9999": 1}}, None, "logit_bias: the token 9999 is outside the vocabulary"),
        ({"stop_token_ids": [9999]}, None, "stop_token_ids: the token 9999 is outside the vocabulary"),
        ({"stop_token_ids": [1] * 200}, "stop_token_ids", "200 ids given; allowed: at most 128"),
        ({"min_tokens": 9}, "min_tokens", "9 given, but a text has at most max_new_tokens = 4"),
        ({"presence_penalty": "much"}, "presence_penalty", "'much' given"),
        ({"top_k": -2}, "top_k", "-2 given"),
        ({"seed": -2}, "seed", "-2 given"),
        (
            {"repetition_penalty": 1.5, "repeat_penalty": 2},
            "repeat_penalty",
            "2.0 given, but repetition_penalty is 1.5",
        ),
        ({"response_format": {"type": "xml"}}, "response_format", "with text, json_object, json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "'json_schema' given without a schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strictly": True}}},
            "response_format",
            "the key 'strictly'; did you mean 'strict'?",
        ),
        ({"guided_json": 3}, "guided_json", "3 given; allowed: a JSON schema"),
        ({"guided_regex": []}, "guided_regex", "[] given; allowed: a regular expression"),
        ({"guided_choice": []}, "guided_choice", "[] given; allowed: a list of texts"),
        ({"structured_outputs": {"grammar": "a"}}, "structured_outputs", "one of json, regex, choice, json_object"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "it cannot be combined with guided_regex"),
        ({"guided_regex": "a("}, "guided_regex", "the regular expression cannot be used: "),
        (
            {"guided_regex": "é"},
            "guided_regex",
            "no token of the tokenizer can continue the text as the regular expression demands",
        ),
        ({"guided_regex": "the", "stop": "e"}, None, "stop: 'e' could end a text before the constraint is met"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "it applies to streamed answers"),
        ({"stream": "yes"}, "stream", "'yes' given"),
    ],
)
def test_parameters_that_cannot_be_honoured(
    server: Running, change: dict[str, Any], param: str | None, sentence: str
) -> None:
    error = refused(posted(server, json.dumps({**COMPLETION, **change}).encode()), 400, sentence)
    assert (error["param"], error["type"]) == (param or error["param"], "invalid_request_error")


def test_neutral_values_are_accepted(server: Running) -> None:
    neutral = {
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "suffix": None,
        "best_of": 1,
        "n": 1,
        "stop": None,
        "user": "me",
        "response_format": {"type": "text"},
        "logprobs": None,
        "stream": False,
        "stream_options": None,
    }
    answer = posted(server, json.dumps({**COMPLETION, **neutral}).encode())
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b"[]", "the body is [], but an object"),
        (b"null", "the body is None, but an object"),
        (b'{"prompt": "\xff"}', "the body is not UTF-8: byte 0xff at position 12"),
        (b'{"temperature": NaN}', "NaN is not a number of JSON"),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "the body is not JSON"),
        (b'{"stop": [' + b'"a",' * 1_000_000 + b'"b"]}', "1,000,001 stop strings given; allowed: at most 16"),
    ],
    ids=["empty", "cut", "list", "null", "utf8", "nan", "deep", "digits", "stops"],
)
def test_bodies_that_cannot_be_read(server: Running, content: bytes, sentence: str) -> None:
    refused(posted(server, content), 400, sentence)


def test_a_lone_surrogate_in_a_prompt_is_read_as_the_replacement_character(server: Running) -> None:
    body = b'{"model": "bytes", "prompt": "a \\ud800", "max_tokens": 2, "echo": true}'
    answer = posted(server, body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"].startswith("a \ufffd")


def test_paths_methods_and_media_types(server: Running) -> None:
    refused(httpx.get(f"{server.url}/v1/nothing"), 404, "there is no path '/v1/nothing'")
    refused(httpx.get(f"{server.url}/v1/completions"), 405, "GET is not allowed at '/v1/completions'")
    refused(httpx.get(f"{server.url}/v1/models/other"), 404, "there is no model 'other'")
    plain = posted(server, json.dumps(COMPLETION).encode(), **{"content-type": "text/plain"})
    refused(plain, 415, "the content type is 'text/plain', but application/json is needed")
    refused(posted(server, b'{"prompt": "a"}'), 400, "model: this server has 5; allowed: bytes, gru")
    assert posted(server, b'{"model": "rop"}').json()["error"]["code"] == "model_not_found"


def test_a_body_beyond_the_limit_is_read_but_not_kept(runs: dict[str, Run]) -> None:
    with serving({"rope": runs["rope"]}, Limits(body=1000)) as server:
        refused(posted(server, b"x" * 5_000_000), 413, "the body has more than 1,000 bytes")

        def parts() -> Any:
            yield from (b"x" * 100_000 for _ in range(20))

        chunked = httpx.post(f"{server.url}/v1/completions", content=parts(), headers=JSON)
        assert "transfer-encoding" in chunked.request.headers
        refused(chunked, 413, "the body has more than 1,000 bytes")
        assert posted(server, json.dumps(COMPLETION).encode()).status_code == 200


def test_a_body_that_does_not_arrive(runs: dict[str, Run]) -> None:
    import socket

    with (
        serving({"rope": runs["rope"]}, Limits(read_seconds=0.2)) as server,
        socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as line,
    ):
        line.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 50\r\n\r\n{"
        )
        assert line.recv(1000).startswith(b"HTTP/1.1 408")


def test_a_prompt_longer_than_a_table_of_positions_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path, characters(), {"learned": True, "num_layers": 1})
    with serving({"learned": run}, Limits(tokens=100)) as server:
        assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["max_model_len"] == 64
        for size, new, sentence in (
            (64, None, "the prompt has 64 tokens, which leave no room for an answer within the limit of 64 tokens"),
            (99, 1, "the prompt has 99 tokens"),
            (60, 5, "the prompt has 60 tokens, which with 5 new ones exceed the limit of 64 tokens; ask for fewer"),
        ):
            given = {"model": "learned", "prompt": "a" * size, "max_tokens": new}
            answer = posted(server, json.dumps(given).encode())
            assert refused(answer, 400, sentence)["code"] == "context_length_exceeded"
        given = {"model": "learned", "prompt": "a" * 60}
        assert posted(server, json.dumps(given).encode()).json()["usage"]["completion_tokens"] == 4


def test_a_key_is_needed_and_compared(runs: dict[str, Run]) -> None:
    with serving({"rope": runs["rope"]}, access=Access(key="sëcret")) as server:
        for path in ("/v1/models", "/metrics", "/v1/nothing"):
            refused(httpx.get(f"{server.url}{path}"), 401, "a key is needed: send the header 'Authorization")
        wrong = httpx.get(f"{server.url}/v1/models", headers={"authorization": "Bearer secret"})
        assert refused(wrong, 401, "the key is wrong")["code"] == "invalid_api_key"
        assert wrong.headers["www-authenticate"] == "Bearer"
        right = {"authorization": "Bearer sëcret".encode()}
        assert httpx.get(f"{server.url}/v1/models", headers=right).status_code == 200
        assert httpx.get(f"{server.url}/health").json()["status"] == "ok"
        with pytest.raises(AuthenticationError):
            server.client("other").models.list()


def test_other_names_of_the_host_and_other_origins(server: Running, runs: dict[str, Run]) -> None:
    port = server.url.rpartition(":")[2]
    for host in (f"localhost:{port}", "127.0.0.1", f"[::1]:{port}"):
        assert httpx.get(f"{server.url}/health", headers={"host": host}).status_code == 200
    refused(httpx.get(f"{server.url}/health", headers={"host": "evil.example"}), 403, "'evil.example' is not served")
    origin = {"origin": "http://a.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in httpx.options(f"{server.url}/v1/completions", headers=origin).headers
    access = Access(key="secret", origins=("http://a.example",))
    with serving({"rope": runs["rope"]}, access=access) as open_server:
        path = f"{open_server.url}/v1/completions"
        assert httpx.options(path, headers=origin).headers["access-control-allow-origin"] == "http://a.example"
        other = {**origin, "origin": "http://b.example"}
        assert "access-control-allow-origin" not in httpx.options(path, headers=other).headers
