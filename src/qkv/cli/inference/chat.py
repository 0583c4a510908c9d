"""Command ``qkv chat``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.inputs import text_of_file
from qkv.cli.shared.runs import Copy, ModelFolder, load_run
from qkv.cli.shared.sampling import GENERATION
from qkv.spec.generation import Generation
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.generation.queue.requests import RequestQueue
    from qkv.runs.run import Run

EXAMPLES = """\
qkv chat SmolLM2-135M-Instruct.gguf
qkv chat my-checkpoint "What is a llama?"
qkv chat my-checkpoint --system "Answer in one sentence." --temperature 0
qkv chat runs/my --chat-template chatml.jinja
"""
PROMPT = "> "
_KEPT = 1 << 30
"""Maximum bytes of the prefix cache, with which a turn processes only its new messages."""


_OPTIONS = GENERATION.only(
    ("max_new_tokens", "temperature", "top_k", "top_p", "seed"),
    {"max_new_tokens": "Maximum tokens of an answer; default: the rest of the context."},
)


def chat_command(
    run: ModelFolder,
    message: Annotated[
        str | None, typer.Argument(metavar="[MESSAGE]", help="One message; default: each line of standard input.")
    ] = None,
    *,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message, before all other messages.")
    ] = None,
    options: Annotated[dict[str, Any], _OPTIONS],
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Jinja chat template that replaces the model's own.")
    ] = None,
    copy: Copy = False,
) -> None:
    """Chat with a model that has a chat template; prompts are rendered as in 'qkv serve'."""
    with _OPTIONS.errors():
        Generation().changed(**options)  # before the slow import of torch
    text = None if chat_template is None else text_of_file(chat_template, "--chat-template")
    if find_spec("jinja2") is None:
        raise UserError("chat templates need jinja2, which is not installed; pip install 'qkv[serve]'")
    chat = Chat(load_run(run, copy), text, {"seed": None, **options})
    history = [] if system is None else [{"role": "system", "content": system}]
    for line in _messages() if message is None else [message]:
        history.append({"role": "user", "content": line})
        pieces = list[str]()
        for piece in chat.answer(history):
            pieces.append(piece)
            typer.echo(piece, nl=False)
        typer.echo()
        history.append({"role": "assistant", "content": "".join(pieces)})


class Chat:
    """Chat with one model, whose prefix cache is kept between the turns."""

    def __init__(self, run: Run, template: str | None, options: dict[str, Any]):
        """``template``: chat template; None: the tokenizer's. Raises ``UserError`` for a model that cannot chat."""
        from qkv.generation.queue.requests import RequestQueue
        from qkv.runs.inference.end_tokens import writing
        from qkv.tokenizers.chat_template import ChatTemplate

        default = run.tokenizer.chat_template if run.vocabulary.has_text else None
        chat_template = default if template is None else template
        if chat_template is None:
            raise UserError(
                f"{run.folder} has no chat template, so the format of its chats is unknown; name a template with "
                "--chat-template FILE, or continue texts with 'qkv generate'"
            )
        self.run, self.template = run, ChatTemplate(chat_template, run.tokenizer)
        self._options, self._generation = options, writing(run).changed(num_beams=1, num_return=1)
        self._queue: RequestQueue = RequestQueue(run.model, run.tokenizer, keep=_KEPT)

    def answer(self, messages: list[dict[str, Any]]) -> Iterator[str]:
        """Generate the next message of the assistant and yield it in pieces. Raises ``UserError``."""
        from qkv.generation.queue.requests import Request
        from qkv.models.fast.frozen_weights import unchanged

        ids = self.template.ids(messages)
        room = self.run.model.spec.context_length - len(ids)
        if room < 1:
            limit = self.run.model.spec.context_length
            raise UserError(f"the chat has {len(ids)} tokens, but the context has room for {limit}; begin a new chat")
        with _OPTIONS.errors():
            generation = self._generation.changed(**{"max_new_tokens": room, **self._options})
        self._queue.submit(Request(ids, generation))
        with unchanged():
            while not self._queue.idle:
                for piece in self._queue.step():
                    if piece.finished == "failed":
                        raise UserError(piece.error)
                    yield piece.text


def _messages() -> Iterator[str]:
    """Yield the non-empty lines of standard input, up to its end."""
    asks = sys.stdin.isatty()
    while True:
        if asks:
            typer.echo(PROMPT, nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.removesuffix("\n")
