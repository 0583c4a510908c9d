"""Commands within ``qkv chat``, messages of several lines, reasoning and tool calls; answers are written in advance."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.chats import CHATML, LOOK, TerminalInput, TerminalOutput, WrittenQueue, rows, saved, texts, written

import qkv
from qkv.cli.inference.chat import Terminal
from qkv.cli.inference.chat_commands import COMMANDS
from qkv.runs.chats.model import ChatModel
from qkv.runs.chats.session import ChatSession
from qkv.runs.run import Run
from qkv.system.errors import UserError

Talk = Callable[..., tuple[ChatSession, WrittenQueue]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return qkv.load(saved(tmp_path_factory.mktemp("chats") / "run", CHATML, 1024))


@pytest.fixture
def talk(run: Run, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """``talk("a\\n", "answer")`` types the text in a terminal, with these answers in order."""

    def talk(
        typed: str, *answers: str, session: ChatSession | None = None, terminal: bool = True
    ) -> tuple[ChatSession, WrittenQueue]:
        session = session or ChatSession(ChatModel(run))
        queue = written(session.model, *answers)
        monkeypatch.setattr("sys.stdin", TerminalInput(typed) if terminal else io.StringIO(typed))
        Terminal(session).converse()
        return session, queue

    return talk


def test_a_message_may_have_several_lines(talk: Talk, run: Run) -> None:
    typed = 'one\\\ntwo\n"""\n/three\n\nfour\\\n"""\n  \n /five\n'
    session, queue = talk(typed, "A", "B", "C")
    assert texts(session.messages) == ["one\ntwo", "A", "/three\n\nfour\\", "B", " /five", "C"]
    assert "<|im_start|>user\n/three\n\nfour\\<|im_end|>\n<|im_start|>assistant\n" in run.tokenizer.decode(
        list(queue.requests[1].prompt)
    )
    with pytest.raises(UserError, match="has no end"):
        talk('"""\nno end\n', terminal=False)


def test_answers_are_taken_back_and_given_anew(talk: Talk, capsys: pytest.CaptureFixture[str], run: Run) -> None:
    session, queue = talk(
        "a\n/retry\nb\n/undo\n/retry\n/system S\n/undo\n/undo\n/retry\n", "one", "two", "three", "four"
    )
    assert session.messages == [{"role": "system", "content": "S"}]
    assert [run.tokenizer.decode(list(each.prompt)).count("<|im_start|>") for each in queue.requests] == [2, 2, 4, 2]
    said = capsys.readouterr()
    assert said.out == "one\ntwo\nthree\nfour\n"
    assert 'taken back: "b"; 2 messages left' in said.err
    assert "there is no message to take back" in said.err
    assert said.err.endswith("there is no message to answer yet\n> \n")


def test_settings_are_checked_and_shown(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    typed = (
        "/set temperature 0.5\n/set top_k=3\n/set temperature hot\n/set temprature 1\n/set stop \\n\n"
        "/set logit_bias 3=-2\n/set top_k default\n/set seed 7\n/set\n/set max_new_tokens 9\nhello\n"
    )
    session, queue = talk(typed, "answer")
    assert session.options == {
        "temperature": 0.5, "stop": ("\n",), "logit_bias": ((3, -2.0),), "seed": 7, "max_new_tokens": 9
    }  # fmt: skip
    generation = queue.requests[0].generation
    assert (generation.temperature, generation.top_k, generation.max_new_tokens) == (0.5, None, 9)
    assert session.model.run.tokenizer.specials["eos"] in generation.stop_token_ids
    said = capsys.readouterr().err
    assert "temperature: 'hot' given" in said
    assert "there is no setting 'temprature'; did you mean 'temperature'?" in said
    assert "temperature = 0.5  (set here; default: 0.8)" in said
    assert "top_p = off  (of the model's folder)" in said
    assert "max_new_tokens = the rest of the context" in said
    with pytest.raises(UserError, match="there is no setting 'beams'"):
        ChatSession(session.model, {"beams": 3})


def test_a_chat_is_saved_and_loaded(talk: Talk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    second.write_text('{"messages": [{"role": "user", "content": "old"}], "source": 3}\n')
    typed = f"/system S\na\n/save {first}\nb\n/new\nc\n/load {second}\n/save {second}\nd\n/save\n/save {tmp_path}\n"
    session, _ = talk(typed, "A", "B", "C", "D")
    one, two = ([{"role": "user", "content": q}, {"role": "assistant", "content": q.upper()}] for q in "ac")
    system, late = (
        {"role": "system", "content": "S"},
        [{"role": "user", "content": "b"}, {"role": "assistant", "content": "B"}],
    )
    assert rows(first) == [
        {"messages": [system, *one, *late]},
        {"messages": [system, *two]},
        {"messages": [{"role": "user", "content": "old"}], "source": 3},
    ]
    assert rows(second)[0] == {"messages": [{"role": "user", "content": "old"}], "source": 3}
    assert [texts(row["messages"]) for row in rows(second)] == [["old"], ["d", "D"]]  # the message had no answer
    assert "is a folder" in capsys.readouterr().err
    session = ChatSession(session.model)
    assert session.resume(second)
    session, _ = talk("e\n", "E", session=session)
    assert [texts(row["messages"]) for row in rows(second)] == [["old"], ["d", "D", "e", "E"]]
    bad = tmp_path / "bad.txt"
    bad.write_text("no chat\n")
    for command in ("/load", "/save"):
        with pytest.raises(UserError, match=r"bad\.txt, line 1: 'no chat' given"):
            talk(f"{command} {bad}\n", terminal=False)
    assert bad.read_text() == "no chat\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/rety", r"'/rety' is no command \(did you mean '/retry'\?\); with a space before the slash"),
        ("/etc/passwd is what?", "'/etc/passwd' is no command"),
        ("/quit now", "/quit takes nothing after it, but 'now' is given"),
        ("/save", "/save needs the name of a file"),
        ("/load", "/load needs the name of a file"),
        ("/load nothing.jsonl", "nothing.jsonl cannot be read: no such file"),
        ("/tools nothing.json", "nothing.json cannot be read"),
        ("/retry", "no message to answer yet"),
        ("hello " * 400, "the context has room for 1,024"),
    ],
)
def test_bad_input_ends_a_pipe_and_not_a_chat(
    talk: Talk, capsys: pytest.CaptureFixture[str], line: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        talk(f"{line}\nhello\n", "A", terminal=False)
    session, _ = talk(f"{line}\nhello\n", "A")
    assert texts(session.messages) == ["hello", "A"]
    said = capsys.readouterr().err
    assert sentence.split("'")[-1].replace("\\", "") in said
    if line.startswith("hello"):
        assert "/undo takes back the last message, /new begins a new chat" in said


def test_help_names_every_command(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    session, _ = talk("/help\n/quit\nnot reached\n")
    said = capsys.readouterr().err
    assert all(f"\n{name} " in said.replace("> ", "\n") for name in COMMANDS)
    assert session.messages == []


def test_reasoning_is_shown_and_kept_apart(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Run
) -> None:
    answer = "<think>\nIt is \x1b[31mred\n</think>\n\nRed."
    monkeypatch.setattr("sys.stdout", TerminalOutput())
    monkeypatch.setattr("sys.stderr", TerminalOutput())
    monkeypatch.setattr("qkv.cli.inference.chat_input._complete", lambda words: None)
    lines = ["colour?"]

    def typed(prompt: str) -> str:
        if not lines:
            raise EOFError
        return lines.pop()

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    talk("", answer)
    shown: str = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert shown.replace("\x1b[0m\x1b[2m", "") == "\x1b[2mthinking: It is \ufffd[31mred\x1b[0m\n\nRed.\n"
    assert "of 1,024 tokens" in sys.stderr.getvalue()  # type: ignore[attr-defined]
    monkeypatch.undo()
    monkeypatch.setattr("sys.stdin", io.StringIO("colour?\nwhy?\n"))
    session = ChatSession(ChatModel(run))
    queue = written(session.model, answer, "Because.")
    Terminal(session).converse()
    assert capsys.readouterr().out == "Red.\nBecause.\n"
    assert session.messages[1] == {
        "role": "assistant", "content": "Red.", "reasoning_content": "It is \x1b[31mred"
    }  # fmt: skip
    assert "<think>\nIt is" in run.tokenizer.decode(list(queue.requests[1].prompt))  # this template keeps it


def test_calls_are_shown_and_results_typed(
    talk: Talk, tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Run
) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([LOOK]))
    call = '<tool_call>\n{"name": "look", "arguments": {"place": "Rome"}}\n</tool_call>'
    session, queue = talk(f"/tools {tools}\nRome?\nsunny\nmore?\n\nbye\n", f"I look. {call}", "Sunny.", call, "Bye.")
    said = capsys.readouterr()
    assert said.out.startswith('I look.\n→ look {"place": "Rome"}\nSunny.\n→ look')
    assert 'result of look {"place": "Rome"}> ' in said.err
    roles = [message["role"] for message in session.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "user", "assistant"]
    identity = session.messages[1]["tool_calls"][0]["id"]
    assert session.messages[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"place": "Rome"}}
    assert session.messages[2] == {"role": "tool", "content": "sunny", "name": "look", "tool_call_id": identity}
    prompt = run.tokenizer.decode(list(queue.requests[1].prompt))
    assert '"name": "look", "parameters"' in prompt
    assert "<|im_start|>tool\nsunny<|im_end|>\n" in prompt


def test_an_answer_is_stopped_and_what_is_written_stays(talk: Talk, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    session = ChatSession(ChatModel(run))
    steps = iter([None, None, signal.SIGINT, None, None, None, None])

    def pressed(self: WrittenQueue, step: Callable[[WrittenQueue], list] = WrittenQueue.step) -> list:
        if (number := next(steps)) is not None:
            signal.raise_signal(number)
        return step(self)

    def impatient(self: ChatSession, *words: Any, take: Callable[..., None] = ChatSession.take) -> None:
        signal.raise_signal(signal.SIGINT)
        take(self, *words)

    monkeypatch.setattr(WrittenQueue, "step", pressed)
    monkeypatch.setattr(ChatSession, "take", impatient)
    session, _ = talk("a\nb\n", "123456789abcdef", "B", session=session)
    assert texts(session.messages) == ["a", "123456789", "b", "B"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
