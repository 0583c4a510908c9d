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
from qkv.spec.errors import SpecError
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


def chat_command(
    run: ModelFolder,
    message: Annotated[
        str | None, typer.Argument(metavar="[MESSAGE]", help="One message; default: each line of standard input.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message, before all other messages.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum tokens of an answer; default: the rest of the context.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="T", help="Sampling temperature; 0 takes the most probable token.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Sample only from the K most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(metavar="P", help="Sample from the smallest set of tokens with probability P.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random seed; default: a new one each time.")] = None,
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Jinja chat template that replaces the model's own.")
    ] = None,
    copy: Copy = False,
) -> None:
    """Chat with a model that has a chat template; prompts are rendered as in 'qkv serve'."""
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    given = {name: value for name, value in options.items() if value is not None}
    _changed(Generation(), given)
    text = None if chat_template is None else text_of_file(chat_template, "--chat-template")
    if find_spec("jinja2") is None:
        raise UserError("chat templates need jinja2, which is not installed; pip install 'qkv[serve]'")
    chat = Chat(load_run(run, copy), text, {**given, "seed": seed})
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

        known = run.tokenizer.chat_template if run.vocabulary.has_text else None
        found = known if template is None else template
        if found is None:
            raise UserError(
                f"{run.folder} has no chat template, so the format of its chats is unknown; name a template with "
                "--chat-template FILE, or continue texts with 'qkv generate'"
            )
        self.run, self.template = run, ChatTemplate(found, run.tokenizer)
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
        self._queue.submit(Request(ids, _changed(self._generation, {"max_new_tokens": room, **self._options})))
        with unchanged():
            while not self._queue.idle:
                for piece in self._queue.step():
                    if piece.finished == "failed":
                        raise UserError(piece.error)
                    yield piece.text


def _changed(generation: Generation, options: dict[str, Any]) -> Generation:
    """Return ``generation`` with the changes ``options``. Raises ``UserError`` that names the invalid option."""
    try:
        return generation.changed(**options)
    except SpecError as error:
        first = error.problems[0]
        raise UserError(f"--{str(first.path[0]).replace('_', '-')}: {first.sentence}") from None


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
