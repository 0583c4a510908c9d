"""What clients of other servers send: settings that are applied, histories that are read, keys that have no effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError
from tests.serving.conftest import Running, serving
from tests.serving.models import text_run
from tests.serving.test_chat import CHATML, folder_of
from tests.serving.test_completions import PROMPT, alone
from tests.serving.test_tools import MARKED_TEMPLATE

from qkv.generation.decode.sample import generate
from qkv.runs.run import Run
from qkv.serving.limits import Limits
from qkv.serving.requests import effects
from qkv.spec.generation import Generation
from qkv.tokenizers.chat_template import find_template

GREEDY = {"model": "rope", "prompt": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True}


def posted(server: Running, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=60)


def text(server: Running, **change: Any) -> str:
    answer = posted(server, **{**GREEDY, **change})
    assert answer.status_code == 200, answer.text
    assert effects.HEADER not in answer.headers
    return answer.json()["choices"][0]["text"]


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({"presence_penalty": 2}, {"presence_penalty": 2.0}),
        ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5}),
        ({"logit_bias": {"7": 100, "3": -100}}, {"logit_bias": {7: 100.0, 3: -100.0}}),
        ({"logit_bias": [[7, 100]]}, {"logit_bias": {7: 100.0}}),
        ({"repeat_penalty": 1.7}, {"repetition_penalty": 1.7}),
        ({"temperature": 1, "seed": 4, "top_k": 3}, {"temperature": 1.0, "seed": 4, "top_k": 3}),
        ({"temperature": 1, "seed": 4, "top_k": -1}, {"temperature": 1.0, "seed": 4}),
        ({"temperature": 1, "seed": 4, "top_k": 0}, {"temperature": 1.0, "seed": 4}),
        ({"stop": ""}, {}),
        ({"stop": [""]}, {}),
        ({"min_tokens": 5}, {}),
    ],
)
def test_settings_are_those_of_generate(
    server: Running, runs: dict[str, Run], asked: dict[str, Any], options: dict[str, Any]
) -> None:
    expected = alone(runs["rope"], PROMPT, **{"max_new_tokens": 20, "temperature": 0.0, **options})
    assert text(server, **asked) == expected


def test_top_k_of_the_run_is_switched_off(tmp_path: Path) -> None:
    run = text_run(tmp_path, sample={"temperature": 1.0, "top_k": 1})
    with serving({"rope": run}) as server:
        asked = {"temperature": None, "seed": 5}
        free = alone(run, PROMPT, max_new_tokens=20, seed=5)
        assert text(server, **asked, top_k=-1) == text(server, **asked, top_k=0) == free
        assert text(server, **asked) == alone(run, PROMPT, max_new_tokens=20, top_k=1) != free


def test_tokens_end_a_text_but_not_too_early(server: Running, runs: dict[str, Run]) -> None:
    run = runs["rope"]
    (ids,) = generate(run.model, [run.tokenizer.encode(PROMPT)], Generation(max_new_tokens=20, temperature=0.0))
    assert run.tokenizer.decode(ids) == text(server)
    end = ids[6]
    made = posted(server, **GREEDY, stop_token_ids=[end]).json()["choices"][0]
    assert (made["text"], made["finish_reason"]) == (run.tokenizer.decode(ids[: ids.index(end)]), "stop")
    later = posted(server, **GREEDY, stop_token_ids=[end], min_tokens=15).json()
    assert later["usage"]["completion_tokens"] >= 15
    own = run.tokenizer.special("eos")
    pushed = {**GREEDY, "ignore_eos": False, "logit_bias": {str(own): 100}}
    assert posted(server, **pushed).json()["usage"]["completion_tokens"] == 0
    assert posted(server, **pushed, min_tokens=7).json()["usage"]["completion_tokens"] == 7


def test_a_seed_of_minus_one_is_a_new_one(server: Running) -> None:
    asked = {"temperature": 1, "seed": -1}
    assert len({text(server, **asked) for _ in range(3)}) == 3


EXTRAS = {
    "reasoning_effort": "low",
    "verbosity": "high",
    "prompt_cache_retention": "24h",
    "cache_prompt": True,
    "keep_alive": "5m",
    "skip_special_tokens": False,
    "frobnicate\n\u20ac": {"a": 1},
}


def test_what_has_no_effect_is_named_and_logged_once(
    server: Running, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "_logged", set())
    whole = text(server)
    answers = [posted(server, **GREEDY, **EXTRAS, user="me", metadata={}) for _ in range(2)]
    for answer in answers:
        assert answer.json()["choices"][0]["text"] == whole
        assert answer.headers[effects.HEADER].split(", ") == [*list(EXTRAS)[:-1], "frobnicate%0A%E2%82%AC"]
    assert [each for each in logged if "verbosity" in each] == [
        "the parameter verbosity has no effect; it is accepted, and logged once"
    ]
    assert len(logged) == len(EXTRAS)
    chat = {"model": "rope", "messages": [{"role": "user", "content": "a", "mood": "good"}] * 2, "max_tokens": 2}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json={**chat, "stream": True}, timeout=60) as answer:
        assert answer.headers[effects.HEADER] == "messages.mood"
        assert answer.read().endswith(b"[DONE]\n\n")
    many = posted(server, **GREEDY, **{f"key{i}": i for i in range(50)})
    assert many.headers[effects.HEADER].endswith("key19, and 30 more")


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ({"verbosity": "low"}, "verbosity: it has no effect here"),
        ({"temprature": 1}, "temprature: it is not known here; did you mean 'temperature'?"),
    ],
)
def test_a_strict_server_refuses_what_has_no_effect(runs: dict[str, Run], extra: dict[str, Any], sentence: str) -> None:
    with serving({"rope": runs["rope"]}, Limits(strict=True)) as server:
        answer = posted(server, **GREEDY, **extra)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(extra)))
        assert sentence in answer.json()["error"]["message"]
        assert posted(server, **GREEDY, user="me").status_code == 200


HISTORY = [
    {"role": "system", "content": [{"type": "input_text", "text": "the "}, {"type": "text", "text": "fox"}]},
    {"role": "user", "content": "a", "id": "msg_1"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "annotations": [{"type": "none"}],
        "tool_calls": [
            {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}},
            {"index": 1, "id": "c2", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "dog"},
    {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
    {"role": "function", "name": "look", "content": "jumps"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "over"}], "refusal": None},
    {"role": "user", "content": "the"},
]
NO_ARGUMENTS = {"type": "function", "function": {"name": "look", "arguments": {}}}
PLAIN = [
    {"role": "system", "content": "the fox"},
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "function": {"name": "look", "arguments": arguments}} for arguments in ({}, {"a": 1})
        ],
    },
    {"role": "tool", "content": "dog"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {}}}],
    },
    {"role": "tool", "content": "jumps"},
    {"role": "assistant", "content": "over"},
    {"role": "user", "content": "the"},
]


def test_histories_of_agents_are_read(tmp_path: Path) -> None:
    tokenizer = folder_of(tmp_path, MARKED_TEMPLATE, True)
    expected = find_template(tokenizer).ids(PLAIN)
    with serving({"chat": text_run(tmp_path, tokenizer=tokenizer)}) as server:
        answer = posted(server, "/v1/chat/completions", messages=HISTORY, max_tokens=3)
    assert answer.status_code == 200, answer.text
    assert effects.HEADER not in answer.headers
    assert answer.json()["usage"]["prompt_tokens"] == len(expected)


def test_thoughts_of_a_history_reach_the_template(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content | default('-') }};{% endfor %}"
    folder_of(tmp_path, template, True)
    run = text_run(tmp_path, tokenizer=folder_of(tmp_path, template, True))
    history = [{"role": "assistant", "content": "a", "reasoning_content": "fox"}, {"role": "user", "content": "a"}]
    with serving({"chat": run}) as server:
        made = posted(server, "/v1/chat/completions", messages=history, max_tokens=1).json()
    assert made["usage"]["prompt_tokens"] == len(run.tokenizer.encode("assistant:fox;user:-;"))


LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
}
ANSWER = {
    "type": "object",
    "properties": {"ok": {"$ref": "#/$defs/Flag"}},
    "required": ["ok"],
    "additionalProperties": False,
    "$defs": {"Flag": {"type": "boolean"}},
}


def test_an_answer_beside_tools_is_a_call_or_what_the_schema_allows(tmp_path: Path) -> None:
    run = text_run(tmp_path, tokenizer=folder_of(tmp_path, MARKED_TEMPLATE, True))
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER}}
    kinds = set[str]()
    with serving({"chat": run}) as server:
        for seed in range(30):
            made = server.client().chat.completions.create(
                model="chat",
                messages=[{"role": "user", "content": "the"}],
                tools=[LOOK],  # type: ignore[list-item]
                response_format=form,  # type: ignore[arg-type]
                seed=seed,
                temperature=2.0,  # so that a random model chooses both
            )
            choice = made.choices[0]
            kinds.add(choice.finish_reason)
            if choice.finish_reason == "tool_calls":
                (call,) = choice.message.tool_calls or ()
                assert call.function.name == "look"  # type: ignore[union-attr]
                assert json.loads(call.function.arguments).keys() == {"n"}  # type: ignore[union-attr]
            elif choice.finish_reason == "stop":
                assert json.loads(choice.message.content or "")["ok"] in (True, False)
    assert kinds >= {"tool_calls", "stop"}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_an_answer_goes_on_to_its_end_or_the_context(tmp_path: Path, path: str) -> None:
    """A completion is as long as that of ``qkv generate``, which is the run's."""
    tokenizer = folder_of(tmp_path, CHATML, True)
    run = text_run(tmp_path, "rope", tokenizer, sample={"max_new_tokens": 5})
    asked: dict[str, Any] = {"ignore_eos": True, "temperature": 0}
    asked |= {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    with serving({"chat": run}) as server, serving({"chat": run}, Limits(tokens=90)) as other:
        found = [posted(each, path, **asked).json() for each in (server, other)]
        long = {**asked, "messages": [{"role": "user", "content": "the fox " * 12}]}
        beyond = posted(server, "/v1/chat/completions", **{k: v for k, v in long.items() if k != "prompt"}).json()
    assert [each["choices"][0]["finish_reason"] for each in found] == ["length", "length"]
    lengths = [each["usage"]["completion_tokens"] for each in found]
    totals = [each["usage"]["total_tokens"] for each in found]
    assert lengths == [5, 5] if path == "/v1/completions" else totals == [64, 90]
    assert beyond["usage"]["completion_tokens"] == 5


def test_a_picture_for_a_model_of_text_is_refused(server: Running) -> None:
    with pytest.raises(BadRequestError, match="the model 'rope' reads no pictures; leave them out"):
        server.client().chat.completions.create(
            model="rope",
            messages=[
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}
            ],
        )
