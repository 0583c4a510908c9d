"""Chats: the function ``qkv.chat``, and files of chats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.chats import CHATML, LOOK, saved

import qkv
from qkv.generation.decode.sample import generate
from qkv.runs.chats.chat import open_model
from qkv.runs.chats.history import HistoryFile, SavedChat, checked_messages, read_chats
from qkv.runs.chats.session import ChatSession
from qkv.serving.engine.model import ServedModel
from qkv.serving.engine.service import Service
from qkv.serving.errors import ApiError
from qkv.serving.http.answers import ChoicesLayout
from qkv.serving.http.completions import asked_to_chat
from qkv.serving.limits import Limits
from qkv.serving.requests.chats import ChatBody
from qkv.spec.base import LARGEST_SEED
from qkv.spec.generation import Generation
from qkv.system.errors import UserError
from qkv.tokenizers.chat_template import find_template

MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "the cat"}]
CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": {"place": "Rome"}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("chats") / "run", CHATML)


def test_the_answer_is_what_the_model_writes_after_the_prompt(folder: Path) -> None:
    run = qkv.load(folder)
    core = run.tokenizer.core
    ends = tuple(int(core.token_to_id(text) or 0) for text in ("<eos>", "<|im_end|>") if core.token_to_id(text))
    settings = Generation(max_new_tokens=8, temperature=0.7, seed=3, stop_token_ids=ends)
    (ids,) = generate(run.model, [find_template(run.tokenizer).ids(MESSAGES)], settings)
    options: dict[str, Any] = {"max_new_tokens": 8, "temperature": 0.7, "seed": 3}
    answer = qkv.chat(run, MESSAGES, **options)
    assert answer == {"role": "assistant", "content": run.tokenizer.decode(ids)}
    assert (
        qkv.chat(folder, [*MESSAGES[:1], {"role": "user", "content": [{"type": "text", "text": "the cat"}]}], **options)
        == answer
    )
    assert "".join(qkv.chat(run, MESSAGES, stream=True, **options)) == answer["content"]
    assert qkv.chat(run, MESSAGES, template="{{ messages[1].content }}", **options) != answer


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"messages": "hello"}, "messages: 'hello' given; allowed: a list"),
        ({"messages": []}, "there are none"),
        ({"messages": [{"content": "a"}]}, "messages: message 1: .* given; allowed: an object with role and content"),
        ({"messages": [{"role": "usr", "content": "a"}]}, "the role 'usr' given"),
        ({"messages": [{"role": "user", "content": 3}]}, "message 1: content is 3; allowed: a text"),
        ({"tools": {"name": "look"}}, "tools: .* a list of tools"),
        ({"tools": [LOOK, LOOK]}, "the function 'look' is given twice"),
        ({"temperature": -1}, "temperature: -1 given"),
        ({"temprature": 1}, "no setting 'temprature' of a chat; did you mean 'temperature'"),
        ({"num_beams": 2}, "no setting 'num_beams' of a chat"),
        ({"messages": [{"role": "user", "content": "the " * 200}]}, "the context has room for 128; shorten it"),
    ],
)
def test_bad_input_is_one_sentence(folder: Path, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        qkv.chat(folder, **{"messages": MESSAGES, **arguments})


def test_a_model_without_a_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no chat template, .*; give one as 'template'"):
        qkv.chat(saved(tmp_path / "run", None), MESSAGES)


def test_tools_are_refused_where_the_server_refuses_them(tmp_path: Path) -> None:
    unknown = CHATML.replace("<tool_call>", "<call of=").replace("{'name': call.function.name, ", "{'which': 1, ")
    folder = saved(tmp_path / "run", unknown)
    with pytest.raises(UserError, match=r"tools: .* writes tool calls in a form that is not supported") as chat:
        qkv.chat(folder, MESSAGES, tools=[LOOK])
    with pytest.raises(UserError) as session:
        ChatSession(open_model(qkv.load(folder))).change_tools([LOOK])
    model = ServedModel("m", qkv.load(folder), Limits())
    body = ChatBody.parse({"messages": MESSAGES, "tools": [LOOK]})
    with pytest.raises(ApiError) as server:
        asked_to_chat(model, body, Service({"m": model}, Limits()), ChoicesLayout())
    assert str(chat.value) == str(session.value) == server.value.sentence


def test_a_retry_has_another_seed_which_can_be_repeated(folder: Path) -> None:
    def answers() -> list[Any]:
        session = ChatSession(open_model(qkv.load(folder)), {"seed": LARGEST_SEED - 1, "max_new_tokens": 8})
        running = [session.ask("the cat"), session.retry(), session.retry()]
        seeds = [answer._request.generation.seed for answer in running]
        assert seeds == [LARGEST_SEED - 1, LARGEST_SEED, 0]
        for answer in running:
            list(answer)
        assert session.ask("the mat")._request.generation.seed == LARGEST_SEED - 1
        return [answer.message for answer in running]

    first = answers()
    assert first == answers()
    assert first[0] != first[1] != first[2]


def test_messages_of_clients_become_those_of_templates() -> None:
    text = {**CALL, "function": {"name": "look", "arguments": '{"place": "Rome"}'}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": parts, "name": "x"},
        {"role": "assistant", "content": None, "tool_calls": [text], "reasoning_content": "r", "refusal": None},
        {"role": "function", "content": "sunny", "name": "look"},
    ]
    assert checked_messages(messages) == [
        {"role": "system", "content": "ab", "name": "x"},
        {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "r"},
        {"role": "tool", "content": "sunny", "name": "look"},
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"messages": MESSAGES}',
        "MESSAGES",
        '[{"messages": MESSAGES}]',
        '\ufeff{"messages": MESSAGES}\r\n\r\n',
        '{\n  "messages": MESSAGES\n}\n',
    ],
)
def test_chats_are_read_from_every_form(tmp_path: Path, text: str) -> None:
    file = tmp_path / "chat.json"
    file.write_text(text.replace("MESSAGES", json.dumps(MESSAGES)), encoding="utf-8")
    assert read_chats(file) == [SavedChat(MESSAGES)]


def test_lines_of_a_file_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    first = {"id": 7, "messages": [{"role": "developer", "content": "é", "weight": 1}]}
    second = {"messages": MESSAGES, "tools": [LOOK], "id": 8}
    file.write_text(f"{json.dumps(first)}\n\n{json.dumps(second)}\n")
    history = HistoryFile(file)
    chat = history.take_last()
    assert chat == SavedChat(MESSAGES, [LOOK], {"id": 8})
    history.write(SavedChat([*MESSAGES, {"role": "assistant", "content": "A"}], chat.tools, chat.columns))
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert lines[0] == first
    assert lines[1] == {**second, "messages": [*MESSAGES, {"role": "assistant", "content": "A"}]}
    history.write(SavedChat())
    assert [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] == [first]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"messages": []}\n{"text": 1}\n', "line 2: {'text': 1} given; allowed: a chat"),
        ("hello\n", "line 1: 'hello' given"),
        ('{"messages": 3}', r"chats.jsonl: 3 given; allowed: a list of messages"),
        ('{"messages": [{"role": "assistant", "tool_calls": [3]}]}', "message 1: the call 3 given"),
        ('[{"messages": []}, 3]', "chat 2: 3 given"),
    ],
)
def test_a_file_of_other_things_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_chats(file)
