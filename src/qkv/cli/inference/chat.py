"""Command ``qkv chat``."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.inference.chat_commands import COMMANDS, run_command
from qkv.cli.inference.chat_input import ENDING, ChatInput
from qkv.cli.inference.chat_output import WAYS_OUT, ChatOutput, called
from qkv.cli.shared.inputs import text_of_file
from qkv.cli.shared.runs import Copy, ModelFolder, load_run, output_file
from qkv.cli.shared.sampling import GENERATION
from qkv.report.figures import counted
from qkv.runs.chats.chat import check_installed, open_model
from qkv.runs.chats.history import read_tools
from qkv.runs.chats.settings import SETTINGS, checked_settings
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.runs.chats.model import RunningAnswer
    from qkv.runs.chats.session import ChatSession

EXAMPLES = """\
qkv chat SmolLM2-135M-Instruct.gguf
qkv chat my-checkpoint "What is a llama?"
qkv chat my-checkpoint --system "Answer in one sentence." --temperature 0
qkv chat my-checkpoint --save chat.jsonl
qkv chat my-checkpoint --tools tools.json
qkv chat runs/my --chat-template chatml.jinja
"""
_WAY_OUT = "name a template with --chat-template FILE, or continue texts with 'qkv generate'"
RESULT = "result of {}> "
"""Prompt of the result of a tool call."""

_OPTIONS = GENERATION.only(
    SETTINGS, {"max_new_tokens": "Maximum tokens of an answer; default: the rest of the context."}
)
_System = Annotated[str | None, typer.Option(metavar="TEXT", help="System message, before all other messages.")]
_Save = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Keep the chat in this file after each message, and go on with its last chat."),
]
_Tools = Annotated[
    Path | None, typer.Option(metavar="FILE", help="JSON list of tools that the model may call; you type the results.")
]
_Template = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Jinja chat template that replaces the model's own.")
]


def chat_command(
    run: ModelFolder,
    message: Annotated[
        str | None, typer.Argument(metavar="[MESSAGE]", help="One message; default: each line of standard input.")
    ] = None,
    *,
    system: _System = None,
    save: _Save = None,
    tools: _Tools = None,
    options: Annotated[dict[str, Any], _OPTIONS],
    chat_template: _Template = None,
    copy: Copy = False,
) -> None:
    """Chat with a model that has a chat template; prompts and settings are those of 'qkv serve'. Type /help inside."""
    with _OPTIONS.errors():
        checked_settings(options)  # before the slow import of torch
    template = None if chat_template is None else text_of_file(chat_template, "--chat-template")
    functions = None if tools is None else read_tools(tools)
    file = None if save is None else output_file("--save", save)
    check_installed()
    model = open_model(load_run(run, copy), template, _WAY_OUT)
    from qkv.runs.chats.session import ChatSession

    session = ChatSession(model, options)
    resumed = file is not None and session.resume(file)
    if system is not None:
        session.change_system(system)
    if functions is not None:
        session.change_tools(functions)
    terminal = Terminal(session)
    if message is not None:
        terminal.answer(session.ask(message), asks=False)
        return
    terminal.greet(resumed)
    terminal.converse()


class Terminal:
    """Chat of a person, or of a file, with a model."""

    def __init__(self, session: ChatSession):
        self.session, self._input, self._output = session, ChatInput(COMMANDS), ChatOutput()

    def greet(self, resumed: bool) -> None:
        """Print what the model is, and how much of a chat was read."""
        model = self.session.model
        room = f"context of {model.limit:,} tokens"
        self._output.note(f"{model.run.folder.name}: {room}; /help lists the commands, Ctrl-D ends the chat")
        if resumed and self.session.file is not None:
            self._output.note(f"{counted(len(self.session.messages), 'message')} of {self.session.file.path} are read")

    def converse(self) -> None:
        """Answer messages and run commands up to the end of the input. Raises ``UserError`` without a terminal."""
        for entry in self._input.entries():
            try:
                if entry.verbatim or not entry.text.startswith("/"):
                    self.answer(self.session.ask(entry.text))
                elif self._command(entry.text):
                    return
            except UserError as error:
                if not self._input.terminal:
                    raise
                self._output.error(_advice(error))
            except KeyboardInterrupt:  # before or after an answer
                if not self._input.terminal:
                    raise
                self._output.reply(ENDING)

    def _command(self, line: str) -> bool:
        """Run a command; return whether the chat ends."""
        reply = run_command(self.session, line)
        if reply.text:
            self._output.reply(reply.text)
        if reply.answer is not None:
            self.answer(reply.answer)
        return reply.ends

    def answer(self, answer: RunningAnswer, asks: bool = True) -> None:
        """Print an answer, and those to the results of its tool calls; asks: whether the user types the results."""
        self._write(answer)
        while asks and self.session.calls and (results := self._results()):
            self._write(self.session.add_results(results))

    def _write(self, answer: RunningAnswer) -> None:
        with self._stopped_by_user(answer):  # up to the end: a second Ctrl-C must not lose what is written
            try:
                self._output.write(answer)
            finally:
                self.session.take(answer)
            self._output.figures(answer, self.session.model.limit)

    def _results(self) -> list[tuple[dict[str, Any], str]]:
        """Read the result of each tool call; an empty line skips a call."""
        self._output.note("type the result of each call, or nothing to skip it")
        lines = [(call, self._input.line(RESULT.format(called(call)))) for call in self.session.calls]
        return [(call, line) for call, line in lines if line]

    @contextmanager
    def _stopped_by_user(self, answer: RunningAnswer) -> Generator[None]:
        """Context manager: in a terminal, Ctrl-C stops the answer and not the chat."""
        if not self._input.terminal:
            yield
            return
        before = signal.signal(signal.SIGINT, lambda number, frame: answer.stop())
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _advice(error: UserError) -> str:
    """Return the sentence of an error, for a full context with the commands that help."""
    from qkv.runs.chats.model import ContextFull

    if not isinstance(error, ContextFull):
        return str(error)
    return f"the chat has {error.tokens:,} tokens, but the context has room for {error.limit:,}; {WAYS_OUT}"
