"""The sweep of odd input sees what is wrong with an answer."""

from __future__ import annotations

import pytest
from tests.fuzz.commands import LINES, Answer, options, wrong
from tests.inventory import assert_lists

from qkv.cli.main import COMMANDS


def test_every_command_is_tried() -> None:
    assert_lists("tests/fuzz/commands.py, LINES", (name.split()[0] for name in LINES), COMMANDS)
    assert ("--vocab-size", "number") in options("tokenizer")
    assert ("--json", "flag") in options("cost")


@pytest.mark.parametrize(
    ("answer", "after", "fault"),
    [
        (Answer(2, "", "qkv: there is no file 'x'\n", 0.1), {"a": b""}, ""),
        (Answer(0, "done", "", 0.1), {"a": b"", "b": b""}, ""),
        (Answer(None, "", "", 9.0), {"a": b""}, "it does not end"),
        (Answer(1, "", "qkv: this is a fault\n", 0.1), {"a": b""}, "code 1"),
        (Answer(2, "", "no file\n", 0.1), {"a": b""}, "no sentence"),
        (Answer(2, "", "Traceback\nqkv: no file\n", 0.1), {"a": b""}, "a traceback or a warning"),
        (Answer(0, "", "", 0.1), {"a": b"", ".b.partial": b""}, "something half-written"),
        (Answer(2, "", "qkv: no\n", 0.1), {"a": b"other"}, "changed a; made "),
        (Answer(2, "", "qkv: no\n", 0.1), {"a": b"", "b": b""}, "changed ; made b"),
    ],
)
def test_a_fault_is_seen(answer: Answer, after: dict[str, bytes], fault: str) -> None:
    assert wrong(answer, {"a": b""}, after) == fault
