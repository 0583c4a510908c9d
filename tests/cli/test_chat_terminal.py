"""``qkv chat`` in a real terminal, and killed."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte
import pytest
from tests.cli.chats import CHATML, rows, saved, texts

SECONDS = 60
"""Time after which a test gives up."""


class Screen:
    """Terminal of 100 columns and 40 lines in which a program runs."""

    def __init__(self, process: subprocess.Popen[bytes], handle: int):
        self.process, self._handle = process, handle
        self._screen = pyte.Screen(100, 40)
        self._stream = pyte.ByteStream(self._screen)

    def type(self, text: str) -> None:
        """Send keys."""
        os.write(self._handle, text.encode())

    def until(self, text: str) -> str:
        """Read what the program prints until the screen shows ``text``; return the screen."""
        end = time.monotonic() + SECONDS
        while text not in self.text and time.monotonic() < end:
            try:
                self._read()
            except OSError:  # the program has ended
                break
        assert text in self.text, self.text
        return self.text

    def until_gone(self, text: str) -> None:
        """Read until ``text`` has left the screen: the program has printed a screenful since."""
        end = time.monotonic() + SECONDS
        while text in self.text and time.monotonic() < end:
            self._read()
        assert text not in self.text, self.text

    def _read(self) -> None:
        ready, _, _ = select.select([self._handle], [], [], 0.2)
        self._stream.feed(os.read(self._handle, 1 << 12) if ready else b"")

    @property
    def text(self) -> str:
        """Lines of the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()


@contextmanager
def terminal(*words: str) -> Iterator[Screen]:
    """Context manager: run ``qkv`` in a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    command = [sys.executable, "-m", "qkv", *words]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Screen(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_person_types_interrupts_and_goes_on(tmp_path: Path) -> None:
    folder, file = saved(tmp_path / "run", CHATML, 100_000), tmp_path / "chat.jsonl"
    settings = ["--save", str(file), "--max-new-tokens", "3", "--min-tokens", "3"]
    with terminal("chat", str(folder), *settings) as screen:
        screen.until("context of 100,000 tokens; /help lists the commands")
        screen.until("\n>")
        screen.type("the cut\x7f\x7f\x7fcat\n")  # edited: three letters are deleted
        assert "\n> the cat\n" in screen.until("the answer is cut: max_new_tokens is 3")
        assert "of 100,000 tokens" in screen.text
        screen.type("/set max_new_tokens default\n/set min_tokens 90000\n")
        screen.until("min_tokens = 90000  (set here")
        screen.type("\x1b[A" * 3 + "s\n")  # the third line before, and a letter
        screen.until_gone("min_tokens = 90000")  # the answer runs
        screen.type("\x03")
        screen.until("stopped: what is written stays")
        screen.type("no")
        screen.until("\n> no")
        screen.type("\x03")
        screen.until("(Ctrl-D or /quit ends the chat)")
        screen.type("/undo\n")
        screen.until('taken back: "the cats"; 2 messages left')
        screen.type("/set min_tokens 4\n/set max_new_tokens 4\nagain\n")
        screen.until("max_new_tokens is 4;")
        screen.type("\x04")
        assert screen.process.wait(SECONDS) == 0
    (row,) = rows(file)
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "user", "assistant"]
    assert texts(row["messages"])[::2] == ["the cat", "again"]


def test_nothing_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    folder, file = saved(tmp_path / "run", CHATML, 100_000), tmp_path / "chat.jsonl"
    command = [sys.executable, "-m", "qkv", "chat", str(folder), "--save", str(file), "--seed", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = "/set max_new_tokens 3", "the cat", "/set max_new_tokens default", "/set min_tokens 90000", "the mat"
        process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        process.stdin.flush()
        end = time.monotonic() + SECONDS
        while (not file.exists() or "the mat" not in file.read_text()) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.stdout.read()
    (row,) = rows(file)
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "user"]
    assert list(tmp_path.glob(".*")) == []
