"""Conversations and preferences of a table, in the forms in which people store them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.given.frames import Dataset, Frame, Value

from qkv.data.given.files import write_splits
from qkv.data.records.conversations.read import (
    CONVERSATION_ROLES,
    PREFERENCE_ROLES,
    JudgedAnswer,
    Preference,
    prompt_of,
    read_conversation,
    read_preference,
)
from qkv.data.records.open import open_records
from qkv.data.records.values import Unusable
from qkv.spec.data import Data
from qkv.system.errors import UserError

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
WORDS = st.text("abc de", min_size=1).filter(str.strip)
TURNS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3)


def messages(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    pairs = [[{"role": "user", "content": a}, {"role": "assistant", "content": b}] for a, b in turns]
    return [message for pair in pairs for message in pair]


def sharegpt(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"from": name, "value": text} for turn in turns for name, text in zip(("human", "gpt"), turn, strict=True)]


@settings(max_examples=60, deadline=None)
@given(TURNS)
def test_every_form_gives_the_same_messages(turns: list[tuple[str, str]]) -> None:
    wanted = tuple(messages(*turns))
    *before, (question, answer) = turns
    rows = [
        {"messages": messages(*turns)},
        {"messages": json.dumps(messages(*turns))},
        {"messages": sharegpt(*turns)},
        {"prompt": [*messages(*before), {"role": "user", "content": question}], "completion": answer},
        {"prompt": question, "completion": answer, "history": [list(turn) for turn in before]},
    ]
    assert [read_conversation(row).messages for row in rows] == [wanted] * len(rows)


def test_what_stands_beside_the_messages() -> None:
    row = {"prompt": "add", "context": "1 and 2", "completion": "3", "system": "be short", "tools": json.dumps([TOOL])}
    conversation = read_conversation(row)
    assert conversation.messages == (
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "add\n\n1 and 2"},
        {"role": "assistant", "content": "3"},
    )
    assert conversation.tools == (TOOL,)
    assert read_conversation({"messages": [*messages(("a", "b")), {"role": "user", "content": "c"}]}).left_out == 1


def test_tool_calls_and_parts_take_the_form_of_templates() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    row = [
        {"role": "user", "content": [{"type": "text", "text": "add "}, {"type": "text", "text": "1"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "1"},
        {"role": "assistant", "content": "2", "reasoning_content": "easy", "weight": 0},
    ]
    read = read_conversation({"messages": row}).messages
    assert read[0]["content"] == "add 1"
    assert read[1] == {"role": "assistant", "content": "", "tool_calls": [{"id": "1", **CALL}]}
    assert read[3] == {"role": "assistant", "content": "2", "reasoning_content": "easy", "weight": 0}
    older = [row[0], {"role": "assistant", "function_call": {"name": "add", "arguments": "{}"}}]
    assert read_conversation({"messages": older}).messages[1]["tool_calls"][0]["function"]["name"] == "add"
    form = [
        {"from": "human", "value": "add"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
    ]
    assert read_conversation({"messages": form}).messages[1]["tool_calls"] == [CALL]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, "no answer"),
        ({"messages": messages(("a", " "))}, "is empty"),
        (
            {"messages": [{"role": "narrator", "content": "a"}]},
            "'narrator'; allowed: system, user, assistant, tool, and other names",
        ),
        ({"messages": "hello"}, "not a list of messages"),
        ({"messages": ["hello"]}, "not an object"),
        ({"messages": "[{"}, "is not JSON"),
        ({"messages": [{"role": "tool", "content": "2"}, *messages(("a", "b"))]}, "no message before it calls a tool"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}, *messages(("a", "b"))]},
            "None given; allowed: an image",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
            "arguments that cannot be used",
        ),
        ({"prompt": " ", "completion": "a"}, "prompt is empty"),
        ({"prompt": "a", "completion": ""}, "completion is empty"),
        ({"prompt": "a", "completion": 4}, "its completion is the number 4, not a text"),
        ({"prompt": 1.5, "completion": "a"}, "its prompt is the number 1.5, not a text"),
        ({"prompt": "a", "completion": "b", "history": "c"}, "not a list of turns"),
        ({"prompt": "a", "completion": "b", "tools": "c"}, "not a list of objects"),
        ({}, "neither messages nor a prompt"),
    ],
)
def test_a_row_that_cannot_be_used_has_a_reason(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        read_conversation(row)


@settings(max_examples=40, deadline=None)
@given(TURNS, WORDS, WORDS)
def test_every_form_of_a_preference(turns: list[tuple[str, str]], good: str, bad: str) -> None:
    good, bad = f"yes {good}", f"no {bad}"
    *before, (question, _) = turns
    prompt = [*messages(*before), {"role": "user", "content": question}]
    chosen, rejected = ([{"role": "assistant", "content": text}] for text in (good, bad))
    wanted = Preference(tuple(prompt), tuple(chosen), tuple(rejected))
    rows = [
        {"prompt": prompt, "chosen": good, "rejected": bad},
        {"prompt": prompt, "chosen": chosen, "rejected": rejected},
        {"prompt": prompt, "chosen": prompt + chosen, "rejected": prompt + rejected},
        {"chosen": prompt + chosen, "rejected": prompt + rejected},
        {
            "messages": [*sharegpt(*before), {"from": "human", "value": question}],
            "chosen": {"from": "gpt", "value": good},
            "rejected": {"from": "gpt", "value": bad},
        },
    ]
    assert [read_preference(row) for row in rows] == [wanted] * len(rows)


@pytest.mark.parametrize(("label", "good"), [(True, True), ("false", False), (1, True), (-1, False), (0.0, False)])
def test_a_label_judges_one_answer(label: Any, good: bool) -> None:
    judged = read_preference({"prompt": "a", "completion": "b", "label": label})
    assert judged == JudgedAnswer(tuple(messages(("a", "b"))[:1]), tuple(messages(("a", "b"))[1:]), good)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "are equal"),
        ({"prompt": "a", "chosen": "b", "rejected": ""}, "rejected is empty"),
        ({"chosen": "b", "rejected": "c"}, "no prompt"),
        ({"prompt": "a", "completion": "b"}, "nor a label"),
        ({"prompt": "a", "completion": "b", "label": "maybe"}, "'maybe'; allowed"),
    ],
)
def test_a_preference_that_cannot_be_used_has_a_reason(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        read_preference(row)


FILES: dict[str, tuple[list[dict[str, Any]], dict[str, str]]] = {
    "messages.jsonl": (
        [{"id": i, "messages": messages((f"q{i}", f"a{i}"))} for i in range(30)],
        {"messages": "messages"},
    ),
    "sharegpt.json": (
        [{"conversations": sharegpt((f"q{i}", f"a{i}"))} for i in range(30)],
        {"messages": "conversations"},
    ),
    "alpaca.jsonl": (
        [{"instruction": f"q{i}", "input": "", "output": f"a{i}"} for i in range(30)],
        {"prompt": "instruction", "context": "input", "completion": "output"},
    ),
    "pairs.csv": (
        [{"question": f"q{i}", "answer": f"a{i}"} for i in range(30)],
        {"prompt": "question", "completion": "answer"},
    ),
    "messages.csv": (
        [{"messages": json.dumps(messages((f"q{i}", f"a{i}")))} for i in range(30)],
        {"messages": "messages"},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_columns_are_recognised_and_told(tmp_path: Path, name: str) -> None:
    rows, columns = FILES[name]
    path = tmp_path / name
    if name.endswith(".csv"):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text(json.dumps(rows) if name.endswith(".json") else "".join(json.dumps(row) + "\n" for row in rows))
    records = open_records(Data(source=str(path)), CONVERSATION_ROLES)
    assert records.columns == columns
    assert any(f"{column!r}" in records.notes[0] for column in columns.values())
    read = [read_conversation(row).messages for rows in records.splits.values() for row in rows]
    assert sorted(each[0]["content"] for each in read) == sorted(f"q{i}" for i in range(30))
    assert all(each[1]["content"] == each[0]["content"].replace("q", "a") for each in read)


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps({"x": f"q{i}", "y": f"a{i}", "z": f"b{i}"}) + "\n" for i in range(20)))
    records = open_records(
        Data(source=str(path), columns={"prompt": "x", "chosen": "z", "rejected": "y"}), PREFERENCE_ROLES
    )
    preference = read_preference(records.splits["train"][0])
    assert isinstance(preference, Preference)
    assert preference.chosen[0]["content"].startswith("b")
    with pytest.raises(UserError, match="no column 'w'"):
        open_records(Data(source=str(path), columns={"prompt": "w"}), PREFERENCE_ROLES)


def test_the_other_form_names_its_command_and_reasons_do_not_repeat(tmp_path: Path) -> None:
    pairs = write(tmp_path / "pairs.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 9)
    with pytest.raises(UserError, match=r"holds preferences; .* 'qkv train prefer', .* --completion chosen"):
        open_records(pairs, CONVERSATION_ROLES)
    talks = write(tmp_path / "talks.jsonl", [{"messages": messages(("a", "b"))}] * 9)
    with pytest.raises(UserError, match=r"holds conversations, .* 'qkv train chat'"):
        open_records(talks, PREFERENCE_ROLES)
    with pytest.raises(UserError, match="such as --prompt prompt --completion reply"):
        open_records(write(tmp_path / "c.jsonl", [{"reply": "b", "prompt": "a"}] * 9), CONVERSATION_ROLES)
    kings = [{"messages": [{"role": name, "content": "a"}]} for name in ("king", "queen")]
    with pytest.raises(UserError, match=r"'king'; line 2: .*'queen'; allowed: system") as refusal:
        open_records(write(tmp_path / "d.jsonl", kings), CONVERSATION_ROLES)
    assert str(refusal.value).count("allowed") == 1


ANSWERS_OF_BRACKETS = [
    '{"name": "Bo", "legs": 8}',
    "[1, 2]",
    "[laughs] no",
    "{x",
    '[{"a": 1}]',
    '{"role": "user"}',
    "3",
]


@pytest.mark.parametrize("text", ANSWERS_OF_BRACKETS)
def test_texts_in_brackets_stay_texts(text: str) -> None:
    assert read_conversation({"prompt": text, "completion": text}).messages == tuple(messages((text, text)))
    preference = read_preference({"prompt": "a", "chosen": text, "rejected": "b"})
    assert isinstance(preference, Preference)
    assert preference.chosen[0]["content"] == text


def test_lists_as_python_prints_them_are_read() -> None:
    turns = messages(("it's", 'a "b"'))
    assert read_conversation({"messages": str(turns)}).messages == tuple(turns)


def test_messages_without_an_answer_take_the_completion() -> None:
    user, answer = messages(("a", "b"))
    assert read_conversation({"messages": [user], "completion": "b"}).messages == (user, answer)
    assert read_conversation({"messages": [user, answer], "completion": "c"}).messages == (user, answer)
    judged = read_preference({"messages": [user], "completion": "b", "label": 1})
    assert judged == JudgedAnswer((user,), (answer,), good=True)


def test_published_forms_of_preferences() -> None:
    user, answer = messages(("a", "b"))
    wanted = Preference((user,), (answer,), ({"role": "assistant", "content": "c"},))
    rows = [
        {"context": {"messages": [user]}, "chosen": [answer], "rejected": list(wanted.rejected)},
        {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"},
        {"prompt": "other", "chosen": [user, answer], "rejected": [user, *wanted.rejected]},
    ]
    assert [read_preference(row) for row in rows] == [wanted] * len(rows)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [{"role": "assistant", "content": "a"}]}, "no message stands before"),
        ({"messages": [{"role": "user", "content": None}, {"role": "assistant", "content": "a"}]}, "no content"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [CALL]}]}, "only the assistant can"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": 3}]}, "names no function"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": "[{"}]}, "not JSON"),
        ({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]}, "allowed: 0 and 1"),
        ({"messages": messages(("a", "\ud800"))}, "surrogate"),
        ({"prompt": "a", "completion": '[{"role": "user", '}, "not JSON"),
        ({"prompt": "a", "completion": True}, "not a list of messages"),
        ({"messages": messages(("a", "b")), "tools": [3]}, "not a list of objects"),
    ],
)
def test_damaged_messages_have_a_reason(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        read_conversation(row)


def write(path: Path, rows: list[dict[str, Any]]) -> Data:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Data(source=str(path))


def test_unusable_rows_are_listed_by_line(tmp_path: Path) -> None:
    rows = [{"messages": messages((f"q{i}", f"a{i}"))} for i in range(20)]
    rows[3] = {"messages": rows[3]["messages"][:1]}
    rows[5] = {"messages": [*rows[5]["messages"], {"role": "user", "content": "and?"}]}
    data = write(tmp_path / "a.jsonl", rows)
    records = open_records(data, CONVERSATION_ROLES)
    assert [(row.line, row.reason) for row in records.bad] == [(4, "it has no answer of the assistant")]
    assert any("1 of 20 rows" in note and "line 4" in note for note in records.notes)
    assert any("1 of 20 conversations goes on" in note for note in records.notes)
    with pytest.raises(UserError, match="line 4: it has no answer"):
        open_records(data.changed(bad_rows="refuse"), CONVERSATION_ROLES)


def test_equal_prompts_stand_in_one_split(tmp_path: Path) -> None:
    rows = [{"messages": messages((f"q{i // 4}", f"a{i}"))} for i in range(80)]
    pairs = [{"prompt": f"q{i // 4}", "chosen": f"a{i}", "rejected": "no"} for i in range(80)]
    for name, table, roles in (("a", rows, CONVERSATION_ROLES), ("b", pairs, PREFERENCE_ROLES)):
        records = open_records(write(tmp_path / f"{name}.jsonl", table), roles)
        train, held = ({prompt_of(row)[0]["content"] for row in records.splits[s]} for s in ("train", "validation"))
        assert held
        assert not train & held
        assert any("60 of 80 rows repeat the input" in note and "another answer" in note for note in records.notes)


def test_columns_that_are_not_read_are_told(tmp_path: Path) -> None:
    rows = [{"response": f"b{i}", "messages": messages((f"q{i}", "a")), "answer": "c"} for i in range(9)]
    notes = open_records(write(tmp_path / "a.jsonl", rows), CONVERSATION_ROLES).notes
    assert "'answer' could be completion, too, and is not read" in notes[0]
    assert any("'response': not read in rows whose 'messages' end with an answer" in note for note in notes)
    with pytest.raises(UserError, match=r"no column of messages, or prompt and completion; .*{messages: x}"):
        open_records(write(tmp_path / "b.jsonl", [{"x": "a"}] * 9), CONVERSATION_ROLES)
    data = write(tmp_path / "c.jsonl", [{"Frage": "a", "Antwort": "b", "Quelle": "c"}] * 9)
    with pytest.raises(UserError, match=r"--prompt Frage --completion Antwort .*{prompt: Frage, completion: Antwort}"):
        open_records(data, CONVERSATION_ROLES)
    with pytest.raises(UserError, match="--prompt Frage --chosen Antwort --rejected Quelle"):
        open_records(data, PREFERENCE_ROLES)


def test_data_in_memory_is_read_like_a_file(tmp_path: Path) -> None:
    columns = {"question": [f"q{i}" for i in range(9)], "answer": [f"a{i}" for i in range(9)]}
    features = dict.fromkeys(columns, Value())
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for i, data in enumerate([rows, columns, Frame(dict(columns)), Dataset(columns, features)]):
        home = tmp_path / str(i)
        with write_splits({"train": data}, tmp_path / "part", lambda digest, home=home: home, running=False) as kept:
            splits = open_records(Data(source=kept.sources["train"]), CONVERSATION_ROLES).splits
        read = [read_conversation(row).messages for part in splits.values() for row in part]
        assert sorted(each[1]["content"] for each in read) == columns["answer"]


@pytest.mark.parametrize("turn", [["q", None], [None, "a"], ["q", 3], ["q", " "], ["q"]])
def test_a_turn_of_the_history_without_a_text_makes_the_row_unusable(turn: list[object]) -> None:
    with pytest.raises(Unusable, match="pairs of a question and an answer"):
        read_conversation({"prompt": "next", "completion": "answer", "history": [["q", "a"], turn]})
