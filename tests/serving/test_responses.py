"""``/v1/responses`` through the official client: the same answers as chats, whole and as events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError
from tests.serving.conftest import Running, serving
from tests.serving.models import text_run
from tests.serving.test_chat import folder_of
from tests.serving.test_clients import ANSWER, LOOK
from tests.serving.test_tools import MARKED_TEMPLATE

from qkv.serving.errors import ApiError
from qkv.serving.limits import Limits
from qkv.serving.requests.chats import ChatMessage
from qkv.serving.requests.conversations import Conversations

TOOL = {"type": "function", **LOOK["function"]}  # type: ignore[dict-item]
GREEDY: dict[str, Any] = {"model": "chat", "temperature": 0, "extra_body": {"ignore_eos": True}}
SEEDED: dict[str, Any] = {"model": "chat", "extra_body": {"seed": 1}}
ITEMS = [
    {"role": "developer", "content": "the fox"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
    {
        "type": "function_call",
        "call_id": "c1",
        "name": "look",
        "arguments": '{"n": 1}',
        "id": "fc",
        "status": "completed",
    },
    {"type": "function_call", "call_id": "c2", "name": "look", "arguments": ""},
    {"type": "function_call_output", "call_id": "c1", "output": "dog"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "jumps"}]},
    {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "over"}]},
    {"role": "user", "content": "the"},
]
MESSAGES = [
    {"role": "system", "content": "the fox"},
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "c1", "function": {"name": "look", "arguments": '{"n": 1}'}},
            {"id": "c2", "function": {"name": "look", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "dog"},
    {"role": "tool", "tool_call_id": "c2", "content": "jumps"},
    {"role": "assistant", "content": "over"},
    {"role": "user", "content": "the"},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("chat")
    run = text_run(folder, tokenizer=folder_of(folder, MARKED_TEMPLATE, True))
    with serving({"chat": run}, Limits(tokens=2000)) as running:
        yield running


def test_a_response_is_the_answer_of_the_chat(server: Running) -> None:
    client = server.client()
    messages = [{"role": "system", "content": "the fox"}, {"role": "user", "content": "a"}]
    chat: Any = client.chat.completions.create(**GREEDY, messages=messages, max_tokens=12)  # type: ignore[call-overload]
    made: Any = client.responses.create(**GREEDY, instructions="the fox", input="a", max_output_tokens=12)
    assert made.output_text == chat.choices[0].message.content
    assert (made.object, made.status, made.model) == ("response", "incomplete", "chat")
    assert made.incomplete_details.reason == "max_output_tokens"
    assert (made.usage.input_tokens, made.usage.output_tokens) == (chat.usage.prompt_tokens, 12)
    assert (made.instructions, made.max_output_tokens, made.tool_choice) == ("the fox", 12, "auto")


def test_items_are_read_as_messages(server: Running) -> None:
    client = server.client()
    chat: Any = client.chat.completions.create(**GREEDY, messages=MESSAGES, max_tokens=5)  # type: ignore[call-overload]
    made: Any = client.responses.create(**GREEDY, input=ITEMS, max_output_tokens=5)  # type: ignore[arg-type]
    assert made.output_text == chat.choices[0].message.content
    assert made.usage.input_tokens == chat.usage.prompt_tokens


def test_a_streamed_response_has_the_events_of_the_whole_one(server: Running) -> None:
    asked = {**GREEDY, "input": "a", "max_output_tokens": 12, "top_logprobs": 2}
    whole: Any = server.client().responses.create(**asked)
    events: list[Any] = list(server.client().responses.create(**asked, stream=True))
    kinds = [each.type for each in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [each.sequence_number for each in events] == list(range(len(events)))
    assert "".join(each.delta for each in events[4:-4]) == whole.output_text == events[-4].text
    last = events[-1].response
    assert last.output_text == whole.output_text
    assert (last.status, last.usage) == (whole.status, whole.usage)
    scores = [score for each in events[4:-4] for score in each.logprobs]
    assert [score.logprob for score in scores] == [score.logprob for score in whole.output[0].content[0].logprobs]
    assert len(scores) == 12
    assert all(len(score.top_logprobs) == 2 for score in scores)


def test_calls_are_items(server: Running) -> None:
    asked: dict[str, Any] = {**SEEDED, "input": "a", "tools": [TOOL], "tool_choice": "required"}
    made: Any = server.client().responses.create(**asked)
    (call,) = made.output
    assert (call.type, call.name, call.status, made.status) == ("function_call", "look", "completed", "completed")
    assert json.loads(call.arguments).keys() == {"n"}
    events: list[Any] = list(server.client().responses.create(**asked, stream=True))
    assert [each.type for each in events[2:]] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[3].delta == events[4].arguments == call.arguments
    named = {**asked, "tool_choice": {"type": "function", "name": "look"}}
    assert server.client().responses.create(**named).output[0].name == "look"  # type: ignore[union-attr]
    again = [{"role": "user", "content": "a"}, *(item.model_dump() for item in made.output)]
    again.append({"type": "function_call_output", "call_id": call.call_id, "output": "fox"})
    assert server.client().responses.create(**{**GREEDY, "input": again, "max_output_tokens": 3}).output_text


def test_an_answer_has_the_form_of_a_schema(server: Running) -> None:
    form = {"format": {"type": "json_schema", "name": "a", "schema": ANSWER, "strict": True}}
    asked: dict[str, Any] = {**SEEDED, "input": "a", "text": form}
    made: Any = server.client().responses.create(**asked)
    assert json.loads(made.output_text)["ok"] in (True, False)
    assert made.status == "completed"
    assert made.text.format.schema_ == ANSWER  # type: ignore[union-attr]
    with server.client().responses.stream(**asked) as stream:  # the client's own reader of events
        assert stream.get_final_response().output_text == made.output_text


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"input": []}, "input: .* given; allowed: a text, or a list of items"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "item 1 has the type 'item_reference'; allowed: message"),
        ({"input": [{"role": "king", "content": "a"}]}, "message 1: role: 'king' given"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "none given; allowed: an image as",
        ),
        ({"conversation": "c"}, "conversation: 'c' given, but this server does not"),
        ({"tools": [{"type": "web_search"}]}, "a tool of the type 'web_search' given; allowed: function"),
        ({"extra_body": {"n": 2}}, "n: 2 given, but this server does not support it"),
        ({"max_output_tokens": 3000}, "with 3000 new ones exceed the limit of 2000"),
    ],
)
def test_one_sentence_for_what_cannot_be_answered(server: Running, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequestError, match=sentence):
        server.client().responses.create(**{"model": "chat", "input": "a", **change})


def test_a_response_goes_on_from_an_earlier_one(server: Running) -> None:
    client, asked = server.client(), {**GREEDY, "max_output_tokens": 5}
    first: Any = client.responses.create(**asked, instructions="the fox", input="a")
    assert (first.store, first.previous_response_id) == (True, None)
    second: Any = client.responses.create(**asked, input="b", previous_response_id=first.id)
    earlier = [{"role": "user", "content": "a"}, {"role": "assistant", "content": first.output_text}]
    whole: Any = client.responses.create(**asked, input=[*earlier, {"role": "user", "content": "b"}], store=False)
    assert (second.output_text, second.usage.input_tokens) == (whole.output_text, whole.usage.input_tokens)
    assert second.previous_response_id == first.id
    events: list[Any] = list(client.responses.create(**asked, input="c", previous_response_id=second.id, stream=True))
    last = events[-1]
    third: Any = client.responses.create(**asked, input="d", previous_response_id=last.response.id)
    assert third.usage.input_tokens > last.response.usage.input_tokens > second.usage.input_tokens
    call: Any = client.responses.create(**SEEDED, input="a", tools=[TOOL], tool_choice="required")  # type: ignore[list-item]
    result: Any = {"type": "function_call_output", "call_id": call.output[0].call_id, "output": "5"}
    assert client.responses.create(**asked, input=[result], previous_response_id=call.id).output_text
    for missing in ("resp_1", whole.id):
        with pytest.raises(
            NotFoundError, match=f"there is no response '{missing}'; this server keeps the latest 1,000"
        ):
            client.responses.create(**asked, input="b", previous_response_id=missing)


def test_the_oldest_responses_are_forgotten() -> None:
    message = ChatMessage(role="user", content="a" * 1000)
    few, small = Conversations(most=2), Conversations(most_bytes=2500)
    for conversations in (few, small):
        for name in ("a", "b", "c"):
            conversations.add(name, [message])
        assert conversations.find("c") == (message,)
        with pytest.raises(ApiError, match="there is no response 'a'"):
            conversations.find("a")
    small.add("d", [message] * 3)
    with pytest.raises(ApiError):
        small.find("d")


def test_an_error_after_the_start_is_the_last_event(server: Running) -> None:
    run = server.service.models["chat"].run
    body = {"input": "a", "stream": True, "ignore_eos": True, "max_output_tokens": 1500}
    with serving({"chat": run}, Limits(seconds=0.2, tokens=2000)) as other:
        answer = httpx.post(f"{other.url}/v1/responses", json=body, timeout=60)
    name, _, data = answer.text.strip().rpartition("\n\n")[2].partition("\n")
    assert name == "event: response.failed"
    last = json.loads(data.removeprefix("data: "))["response"]
    assert (last["status"], last["error"]["code"]) == ("failed", "timeout")
