"""Writing of answers for ``qkv chat``: content to standard output, and for a terminal its reasoning and figures."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from qkv.report.figures import short

if TYPE_CHECKING:
    from qkv.runs.chats.model import RunningAnswer

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters except tab and line feed: a terminal would obey them."""
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
THINKING = "thinking: "
"""Text before the reasoning of an answer."""


class ChatOutput:
    """Streams of a chat. A terminal also shows reasoning, dimmed where it has colours, and notes."""

    def __init__(self) -> None:
        self._terminal, self._notes = sys.stdout.isatty(), sys.stderr.isatty()
        dull = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._dim, self._plain = ("", "") if dull else (_DIM, _PLAIN)

    def write(self, answer: RunningAnswer) -> None:
        """Print an answer while it is generated. Raises ``UserError``."""
        last, thinks = "", False
        for part in answer:
            if part.reasoning and self._terminal:
                last = self._put(part.reasoning, f"{self._dim}{'' if thinks else THINKING}", self._plain)
                thinks = True
            if part.content:
                if thinks and last:
                    self._put("\n" if last.endswith("\n") else "\n\n")
                    thinks = False
                last = self._put(part.content)
            for call in part.calls:
                line = "" if last.endswith("\n") or not last else "\n"
                last = self._put(f"{line}→ {call.name} {call.arguments}\n")
        if not last.endswith("\n"):
            typer.echo()

    def _put(self, text: str, before: str = "", after: str = "") -> str:
        """Print text without the control characters that a terminal would obey; return it."""
        printable = _CONTROL.sub("\ufffd", text) if self._terminal else text
        sys.stdout.write(f"{before}{printable}{after}")
        sys.stdout.flush()
        return text

    def note(self, text: str) -> None:
        """Print a note, if standard error is a terminal."""
        if self._notes:
            sys.stderr.write(f"{self._dim}{text}{self._plain}\n")
            sys.stderr.flush()

    def reply(self, text: str) -> None:
        """Print the answer to a command, to standard error."""
        typer.echo(text, err=True)

    def error(self, sentence: str) -> None:
        """Print why something was refused."""
        sys.stderr.write(f"qkv: {' '.join(sentence.split())}\n")
        sys.stderr.flush()

    def figures(self, answer: RunningAnswer, limit: int) -> None:
        """Print the context in use, the rate, and why an answer ended before its end."""
        rate = "" if answer.rate is None else f", {short(answer.rate, 2)} tokens/s"
        self.note(f"{answer.read + answer.written:,} of {limit:,} tokens{rate}")
        if answer.finished == "cancelled":
            rest = "what is written stays" if answer.message else "nothing is written"
            self.note(f"stopped: {rest}; /retry answers anew")
        elif answer.finished == "length":
            full = answer.read + answer.written >= limit
            why = "the context is full" if full else f"max_new_tokens is {answer.written:,}"
            self.note(f"the answer is cut: {why}; {WAYS_OUT if full else '/set max_new_tokens N changes it'}")


WAYS_OUT = "/undo takes back the last message, /new begins a new chat"
"""Advice when the context is full."""


def called(call: Mapping[str, Any]) -> str:
    """Format a tool call of a message."""
    function = call["function"]
    return f"{function['name']} {json.dumps(function['arguments'], ensure_ascii=False)}"
