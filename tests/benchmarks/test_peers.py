"""Peers in processes of their own: one that dies is named in its row, and the others go on."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import peer_process  # alone, as each process of the tests imports this file anew

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX systems")


def kill_itself(signal_number: int = signal.SIGSEGV) -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal_number)


def work(pipe: Connection, fault: str) -> None:
    """Reply with the double of a number; at 3 something happens."""

    def start() -> Callable[[int], int]:
        if fault == "killed at its start":
            kill_itself()
        if fault == "cannot start":
            raise ValueError("no such model")
        return answer

    def answer(number: int) -> int:
        if number == 3 and fault == "killed":
            kill_itself()
        if number == 3 and fault == "killed for memory":
            kill_itself(signal.SIGKILL)
        if number == 3 and fault == "ends":
            os._exit(4)
        return 2 * number

    peer_process.serve(pipe, start)


def test_a_living_process_replies() -> None:
    with peer_process.process("peer", work, "none") as ask:
        assert [ask(number) for number in (1, 3, 5)] == [2, 6, 10]


@pytest.mark.parametrize(
    ("fault", "message"),
    [("killed", "died: signal 11"), ("killed for memory", "died: signal 9"), ("ends", "died: exit code 4")],
)
def test_a_process_that_dies_at_a_question_says_how(fault: str, message: str) -> None:
    with peer_process.process("peer", work, fault) as ask:
        assert ask(2) == 4
        for _ in range(2):  # and again, when it is asked once more
            with pytest.raises(peer_process.Died, match=message) as found:
                ask(3)
            assert found.value.side == "peer"


@pytest.mark.parametrize(
    ("fault", "message"), [("killed at its start", "died: signal 11"), ("cannot start", "ValueError: no such model")]
)
def test_a_process_that_does_not_start_says_why(fault: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message), peer_process.process("peer", work, fault):
        pass


def test_the_others_go_on() -> None:
    asked: list[str] = []

    def side(name: str) -> int:
        asked.append(name)
        if name == "b" and len(asked) > 3:
            raise peer_process.Died(name, -11)
        return len(asked)

    sides, died = {name: partial(side, name) for name in "abc"}, dict[str, str]()
    for _ in range(2):
        found = peer_process.living(lambda live: {name: run() for name, run in live.items()}, sides, died)
    assert found.keys() == sides.keys() == {"a", "c"}
    assert died == {"b": "died: signal 11"}
    assert asked == [*"abc", *"ab", *"ac"]


def _dying(work: Any) -> Any:
    """A peer that writes one batch and dies at the next."""
    done: list[int] = []

    def run(prompts: list[list[int]], new: int) -> list[list[int]]:
        if done:
            kill_itself()
        done.append(new)
        return [[0] * new for _ in prompts]

    return run


def test_the_row_of_a_peer_that_died_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole benchmark with a model of one layer: rows of all batches, and what died in its column."""
    decode, decode_peers = import_module("decode"), import_module("decode_peers")
    monkeypatch.setitem(decode_peers.PEERS, "llama.cpp", decode_peers.Peer("json", "json", ("int8",), _dying))
    monkeypatch.setattr(decode, "here", lambda name, asked: name == "llama.cpp")
    asked = argparse.Namespace(model="gpt2", smoke=True, batch=[1, 2], new=4, no_first=False, peers=None, repeats=1)
    rows = decode.measure("int8", asked)
    column = decode.COLUMNS.index("llama.cpp")
    assert [row[column] for row in rows] == ["died: signal 11"] * 3
    assert [row[decode.COLUMNS.index("batch")] for row in rows] == ["1", "2", "first of 512, s"]
    assert all(float(row[decode.COLUMNS.index("qkv")].replace(",", "")) > 0 for row in rows)
    assert "llama.cpp died: signal 11" in capsys.readouterr().out
