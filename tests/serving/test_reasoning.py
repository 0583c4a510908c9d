"""Reasoning and calls of every template style, through the official client: whole, streamed, and as items."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
from openai import BadRequestError
from tests.serving.conftest import Running, serving
from tests.serving.models import byte_pairs, text_run
from tests.tokenizers.answer_styles import STYLES, TOKENS
from tests.tokenizers.test_answers import PARAMETERS

from qkv.generation.text import generate_text
from qkv.runs.run import Run
from qkv.serving.requests.effects import HEADER
from qkv.spec.generation import Generation

ANSWER = "<think>\nthe quick\nbrown </thin fox\n</think>\n\njumps over"
THOUGHT, CONTENT = "the quick\nbrown </thin fox", "jumps over"
STRICT = {**PARAMETERS, "required": list(PARAMETERS["properties"]), "additionalProperties": False}
STRICT["properties"] = {**PARAMETERS["properties"], "city": {"enum": ["Köln <b>", "12"]}, "places": {"type": "boolean"}}
STRICT["properties"]["days"] = {"type": "integer", "minimum": 1, "maximum": 9}
STRICT["properties"]["more"] = {"$ref": "#/$defs/More"}
STRICT["$defs"] = {"More": {"enum": ["a", None]}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": STRICT}},
    {"type": "function", "function": {"name": "now"}},
]
CALLING = [name for name in STYLES if name not in ("plain", "gemma")]
MESSAGES: list[Any] = [{"role": "user", "content": "the fox"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a model of each style."""
    runs = {}
    for name, template in STYLES.items():
        tokenizer = byte_pairs("bos", "eos").with_specials((), [each for each in TOKENS if "THINK" not in each])
        tokenizer.chat_template = template
        runs[name] = text_run(tmp_path_factory.mktemp(name), "linear", tokenizer)
    with serving(runs) as running:
        yield running


def asked(server: Running, model: str, **options: Any) -> Any:
    given = {"model": model, "messages": MESSAGES, "seed": 1, "max_tokens": 500, **options}
    return server.client().chat.completions.create(**given)


def forced(text: str, **more: Any) -> dict[str, Any]:
    """Parameters with which the model writes exactly ``text``."""
    escaped = "".join(f"\\{each}" if each in "[](){}|.*+?^$\\" else each for each in text)
    return {"extra_body": {"guided_regex": escaped, **more}}


def test_an_answer_is_split_into_reasoning_and_content(server: Running) -> None:
    tokenizer = server.service.models["qwen3"].tokenizer
    made = asked(server, "qwen3", **forced(ANSWER))
    message = made.choices[0].message
    assert (message.reasoning_content, message.reasoning, message.content) == (THOUGHT, THOUGHT, CONTENT)
    chunks = list(asked(server, "qwen3", **forced(ANSWER), stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    thoughts = [delta.reasoning_content for delta in deltas if getattr(delta, "reasoning_content", None)]
    assert "".join(thoughts) == "".join(d.reasoning for d in deltas if getattr(d, "reasoning", None)) == THOUGHT
    assert "".join(delta.content or "" for delta in deltas) == CONTENT
    first = next(i for i, delta in enumerate(deltas) if delta.content)
    assert not any(getattr(delta, "reasoning", None) for delta in deltas[first + 1 :]), "reasoning comes first"
    counted = made.usage.completion_tokens_details.reasoning_tokens
    assert counted == chunks[-1].usage.completion_tokens_details.reasoning_tokens
    assert 0 < counted < made.usage.completion_tokens
    assert abs(counted - len(tokenizer.encode(ANSWER.partition("</think>")[0] + "</think>"))) <= 40
    plain = asked(server, "qwen3", **forced(CONTENT))
    assert not hasattr(plain.choices[0].message, "reasoning_content")
    assert plain.usage.completion_tokens_details.reasoning_tokens == 0


def test_the_tokens_of_the_reasoning_are_counted_to_its_end(server: Running) -> None:
    made = asked(server, "qwen3", **forced(ANSWER), logprobs=True)
    tokens = b"".join(bytes(each.bytes) for each in made.choices[0].logprobs.content)
    assert tokens.decode() == ANSWER
    count, text = 0, b""
    for each in made.choices[0].logprobs.content:
        count, text = count + 1, text + bytes(each.bytes)
        if b"</think>" in text:
            break
    assert made.usage.completion_tokens_details.reasoning_tokens == count


def test_a_prompt_that_opens_the_reasoning(server: Running) -> None:
    made = asked(server, "deepseek", max_tokens=12, extra_body={"ignore_eos": True})
    message = made.choices[0].message
    assert message.reasoning_content
    assert (message.content, made.choices[0].finish_reason) == ("", "length")
    assert made.usage.completion_tokens_details.reasoning_tokens == 12
    made = asked(server, "deepseek", **forced("the fox"))
    assert made.choices[0].message.content == "the fox", "a constrained answer begins after the reasoning"
    assert not hasattr(made.choices[0].message, "reasoning_content")


def prompt_tokens(server: Running, model: str, **body: Any) -> int:
    answer = httpx.post(
        f"{server.url}/v1/chat/completions",
        json={"model": model, "messages": MESSAGES, "max_tokens": 1, **body},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    assert HEADER not in answer.headers
    return answer.json()["usage"]["prompt_tokens"]


def test_reasoning_is_switched_by_variables_of_the_template(server: Running) -> None:
    template = server.service.models["qwen3"].template
    on, off = (len(template.ids(MESSAGES, enable_thinking=value)) for value in (True, False))
    assert on != off
    for body, expected in (
        ({"enable_thinking": False}, off),
        ({"chat_template_kwargs": {"enable_thinking": False}}, off),
        ({"reasoning_effort": "none"}, off),
        ({"reasoning_effort": "low"}, on),
        ({}, on),
    ):
        assert prompt_tokens(server, "qwen3", **body) == expected
    harmony = server.service.models["harmony"].template
    assert prompt_tokens(server, "harmony", reasoning_effort="minimal") == len(
        harmony.ids(MESSAGES, reasoning_effort="minimal")
    )
    granite = server.service.models["granite"].template
    assert prompt_tokens(server, "granite", reasoning_effort="high") == len(granite.ids(MESSAGES, thinking=True))


def test_models_tell_the_forms_of_their_answers(server: Running) -> None:
    listed = {each.id: each.model_dump()["answers"] for each in server.client().models.list()}
    assert listed["qwen3"] == {"reasoning": "think", "tools": "hermes"}
    assert listed["harmony"] == {"reasoning": "harmony", "tools": "harmony"}
    assert listed["gemma"] == {"reasoning": None, "tools": None}


def test_what_the_template_does_not_read_is_named(server: Running) -> None:
    body = {"model": "plain", "messages": MESSAGES, "max_tokens": 1}
    more = {"reasoning_effort": "low", "enable_thinking": True, "chat_template_kwargs": {"mood": 1}}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={**body, **more}, timeout=60)
    names = {"chat_template_kwargs.mood", "reasoning_effort", "enable_thinking"}
    assert set(answer.headers[HEADER].split(", ")) == names


@pytest.mark.parametrize("style", CALLING)
def test_a_required_call_is_written_in_the_form_of_the_template(server: Running, style: str) -> None:
    options: dict[str, Any] = {"tools": TOOLS, "temperature": 1.2}
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in (named, "required"):
        made = asked(server, style, tool_choice=choice, **options)
        message = made.choices[0].message
        assert (made.choices[0].finish_reason, message.content) == ("tool_calls", None), message
        (call,) = message.tool_calls
        if call.function.name == "weather":
            jsonschema.validate(json.loads(call.function.arguments), STRICT)
        else:
            assert json.loads(call.function.arguments) == {}
        chunks = list(asked(server, style, tool_choice=choice, stream=True, **options))
        deltas = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or []]
        assert [each.function.arguments for each in deltas] == [call.function.arguments]
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert len(call.id) == (9 if style in ("mistral", "magistral") else 29)
    again = [
        *MESSAGES,
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "5"},
    ]
    assert asked(server, style, messages=again, tools=TOOLS, max_tokens=1).choices


def test_the_calls_of_another_server_are_given_to_a_template_with_short_ids(server: Running) -> None:
    call = {"id": "call_of_another_server", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    answer = {"role": "tool", "tool_call_id": call["id"], "content": "5"}
    history = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}, answer]
    assert asked(server, "mistral", messages=history, tools=TOOLS, max_tokens=1).choices


def test_tools_of_a_template_without_them_are_refused(server: Running) -> None:
    with pytest.raises(BadRequestError, match="tools: the chat template of this model does not support tools"):
        asked(server, "gemma", tools=TOOLS)


def test_a_response_has_its_reasoning_as_an_item(server: Running) -> None:
    given: dict[str, Any] = {"model": "qwen3", "input": "the fox", "max_output_tokens": 300, **forced(ANSWER, seed=1)}
    made: Any = server.client().responses.create(**given)
    thought, message = made.output
    assert (thought.type, thought.content[0].text, thought.summary) == ("reasoning", THOUGHT, [])
    assert (message.type, made.output_text) == ("message", CONTENT)
    assert made.usage.output_tokens_details.reasoning_tokens > 0
    events: list[Any] = list(server.client().responses.create(**given, stream=True))
    kinds = [each.type for each in events]
    assert list(dict.fromkeys(kinds)) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.completed",
    ]
    assert [each.sequence_number for each in events] == list(range(len(events)))
    deltas = [each.delta for each in events if each.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == THOUGHT
    assert [each.output_index for each in events if each.type == "response.output_item.added"] == [0, 1]
    with server.client().responses.stream(**given) as stream:  # the client's own reader of events
        assert stream.get_final_response().output_text == CONTENT
    again = [{"role": "user", "content": "the fox"}, *(item.model_dump() for item in made.output)]
    asked_again: Any = {**given, "input": [*again, {"role": "user", "content": "and?"}], "reasoning": {"effort": "low"}}
    assert server.client().responses.create(**asked_again).output_text == CONTENT


def test_an_answer_continues_the_last_message(server: Running, runs: dict[str, Run]) -> None:
    run = runs["rope"]
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 9}
    start = "jumps over "
    prompt = f"User: a\nAssistant: {start}"  # as TEMPLATE renders it
    expected = generate_text(run.model, run.tokenizer, prompt, Generation(max_new_tokens=9, temperature=0.0))
    begun = [{"role": "user", "content": "a"}, {"role": "assistant", "content": start}]
    marked = [begun[0], {**begun[1], "prefix": True}]
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    with serving({"rope": run}) as running:
        for messages, more in ((begun, flags), (marked, {})):
            body = {"ignore_eos": True, **more}
            made = asked(running, "rope", messages=messages, extra_body=body, **options)
            assert made.choices[0].message.content == expected
            assert made.usage.prompt_tokens == len(run.tokenizer.encode(prompt))


def test_the_start_of_an_answer_is_not_part_of_it(server: Running) -> None:
    """A start that opens reasoning goes on with it, and its text is not returned."""
    start = {"role": "assistant", "content": "<think>\nthe", "prefix": True}
    made = asked(server, "coder", messages=[*MESSAGES, start], **forced(" fox</think>over"))
    assert made.choices[0].message.content == " fox</think>over", "a template without reasoning"
    made = asked(server, "qwen3", messages=[*MESSAGES, {**start, "content": "the"}], **forced(" fox "))
    assert made.choices[0].message.content == " fox "


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"extra_body": {"continue_final_message": True}}, "the last message is no text of the assistant"),
        (
            {
                "messages": [{"role": "assistant", "content": "a"}],
                "extra_body": {"continue_final_message": True, "add_generation_prompt": True},
            },
            "add_generation_prompt: it cannot be combined with continue_final_message",
        ),
        ({"messages": [{"role": "user", "content": "a", "prefix": True}]}, "is no start of an answer"),
        (
            {"messages": [{"role": "assistant", "content": "a", "prefix": True}, *MESSAGES]},
            "messages.0.prefix: only the last message can be the start",
        ),
        ({"extra_body": {"chat_template": "{{ 1 }}"}}, "chat_template: .* this server does not support it"),
    ],
)
def test_one_sentence_for_a_start_that_cannot_be(server: Running, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequestError, match=sentence):
        asked(server, "plain", **change)
