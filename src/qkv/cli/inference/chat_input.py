"""Reading of messages for ``qkv chat``: lines of a terminal, with editing, or of a file or pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import typer

from qkv.system.errors import UserError

PROMPT, FURTHER = "> ", "… "
"""Prompts of a message and of its further lines."""
BLOCK = '"""'
"""Line before and after a message of several lines."""
ENDING = "\n(Ctrl-D or /quit ends the chat)"
"""Sentence after a Ctrl-C that stops no answer."""


class ChatEntry(NamedTuple):
    """Text that the user entered; ``verbatim``: whether it is a message even if it begins like a command."""

    text: str
    verbatim: bool = False


class ChatInput:
    """Reader of chat messages from standard input; a message may take several lines. ``terminal``: True if a person
    types.
    """

    def __init__(self, words: Iterable[str] = ()):
        """``words``: completions of the first word of a line."""
        self.terminal = sys.stdin.isatty()
        self._edits = self.terminal and sys.stdout.isatty()
        if self._edits:
            _complete(sorted(words))

    def entries(self) -> Iterator[ChatEntry]:
        """Yield what the user enters, without empty lines, up to the end of the input.

        A line that ends in a backslash goes on in the next one; lines between two lines ``BLOCK`` are one message.
        Ctrl-C at the prompt drops what is typed.
        """
        while True:
            try:
                entry = self._entry()
            except KeyboardInterrupt:
                if not self.terminal:
                    raise
                typer.echo(ENDING, err=True)
                continue
            if entry is None:
                break
            if entry.text.strip():
                yield entry
        if self.terminal:
            typer.echo(err=True)

    def _entry(self) -> ChatEntry | None:
        line = self.line(PROMPT)
        if line is None:
            return None
        if line.strip() == BLOCK:
            return ChatEntry(self._block(), verbatim=True)
        while line.endswith("\\"):
            line = f"{line[:-1]}\n{self.line(FURTHER) or ''}"
        return ChatEntry(line)

    def _block(self) -> str:
        lines = list[str]()
        while (line := self.line(FURTHER)) is not None:
            if line.strip() == BLOCK:
                return "\n".join(lines)
            lines.append(line)
        raise UserError(f"the message that begins with {BLOCK} has no end; write a line {BLOCK} after it")

    def line(self, prompt: str) -> str | None:
        """Read one line; None at the end of the input. Raises ``UserError`` if it is not UTF-8."""
        try:
            if self._edits:
                return input(prompt)
            if self.terminal:
                typer.echo(prompt, nl=False, err=True)
            line = sys.stdin.readline()
        except EOFError:
            return None
        except UnicodeDecodeError:
            raise UserError("standard input is not UTF-8") from None
        return line.removesuffix("\n") if line else None


def _complete(words: list[str]) -> None:
    """Let ``input`` edit lines, recall earlier ones and complete commands, where the system has the library."""
    try:
        readline: Any = import_module("readline")
    except ImportError:
        return

    def complete(text: str, number: int) -> str | None:
        return next(iter([word for word in words if word.startswith(text)][number:]), None)

    readline.set_completer_delims(" \t\n")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    readline.parse_and_bind("set enable-bracketed-paste on")
