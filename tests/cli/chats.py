"""Tiny chat models, answers that are written in advance, and streams that say that they are terminals."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import qkv
from qkv.generation.queue.requests import Request, TextDelta
from qkv.runs.chats.model import ChatModel
from qkv.spec import tokenizers as spec
from qkv.spec.model import Text
from qkv.tokenizers.train import train

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}A: {% endif %}"
)
CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\nTools:\\n' }}
    {%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or () %}
        {{- '\\n<tool_call>\\n' }}
        {{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
        {{- '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
LOOK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}},
}


def saved(folder: Path, template: str | None, length: int = 128) -> Path:
    """Save a random decoder with a chat template."""
    tokenizer = train(spec.BPE(vocab_size=270), ["the cat sat on the mat. " * 20])
    tokenizer = tokenizer.with_specials(("eos",), ("<|im_start|>", "<|im_end|>"))
    tokenizer.chat_template = template
    model = qkv.build(
        qkv.Model(num_layers=1, width=32, context_length=length, frontend=Text(vocab_size=tokenizer.vocab_size))
    )
    return qkv.save(model, folder, tokenizer)


def rows(file: Path) -> list[dict[str, Any]]:
    """Return the JSON of each line of a file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


class WrittenQueue:
    """Queue of requests whose answers are written in advance, three characters a step."""

    def __init__(self, *answers: str):
        self.answers, self.requests = list(answers), list[Request]()
        self.cancelled = False
        self._pieces: list[str] = []

    def submit(self, request: Request) -> int:
        """Begin the next answer."""
        text = self.answers[len(self.requests)]
        self._pieces = [text[place : place + 3] for place in range(0, len(text), 3)]
        self.requests.append(request)
        self.cancelled = False
        return len(self.requests)

    def cancel(self, number: int) -> None:
        """End the answer."""
        self.cancelled = True

    def step(self) -> list[TextDelta]:
        """Write a piece."""
        number = len(self.requests)
        if self.cancelled or not self._pieces:
            return [TextDelta(number, finished="cancelled" if self.cancelled else "stop")]
        return [TextDelta(number, self._pieces.pop(0), (1,))]


def written(model: ChatModel, *answers: str) -> WrittenQueue:
    """Let a model give ``answers``."""
    queue: Any = WrittenQueue(*answers)
    model.queue = queue
    return queue


class TerminalInput(io.StringIO):
    """Lines that a person types."""

    def isatty(self) -> bool:
        """Return True."""
        return True


class TerminalOutput(io.StringIO):
    """Text that a person reads."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def texts(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Return the contents of messages."""
    return [message["content"] for message in messages]
