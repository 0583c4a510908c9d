"""Commands within a chat of ``qkv chat``, such as ``/retry``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from qkv.cli.inference.chat_input import BLOCK
from qkv.cli.shared.runs import output_file
from qkv.report.figures import counted
from qkv.runs.chats.history import read_tools
from qkv.runs.chats.settings import SETTINGS, checked_settings
from qkv.spec.files.reader import scalar
from qkv.system.errors import UserError, nearest

if TYPE_CHECKING:
    from qkv.runs.chats.model import RunningAnswer
    from qkv.runs.chats.session import ChatSession


class Reply(NamedTuple):
    """Effect of a command: text to show, an answer to write, and whether the chat ends."""

    text: str = ""
    answer: RunningAnswer | None = None
    ends: bool = False


class ChatCommand(NamedTuple):
    """Command within a chat. form: its arguments. help: what it does. run: function of session and argument."""

    form: str
    help: str
    run: Callable[[ChatSession, str], Reply]


def run_command(session: ChatSession, line: str) -> Reply:
    """Run the command ``line``, which begins with a slash. Raises ``UserError``."""
    name, _, argument = line.partition(" ")
    name, newline, more = name.partition("\n")
    argument = f"{more} {argument}" if newline else argument
    command = COMMANDS.get(name.strip())
    if command is None:
        advice = nearest(name, COMMANDS)
        raise UserError(f"{name!r} is no command ({advice}); with a space before the slash it is a message")
    if argument.strip() and not command.form:
        raise UserError(f"{name} takes nothing after it, but {argument.strip()!r} is given")
    return command.run(session, argument.strip())


def _help(session: ChatSession, argument: str) -> Reply:
    forms = [f"{name} {command.form}".strip() for name, command in COMMANDS.items()]
    width = max(map(len, forms))
    rows = [f"{form:{width}}  {command.help}" for form, command in zip(forms, COMMANDS.values(), strict=True)]
    lines = [
        "",
        "A line that ends in a backslash goes on in the next one.",
        f"Lines between two lines {BLOCK} are one message.",
        "Ctrl-C stops an answer and keeps what is written; Ctrl-D ends the chat.",
    ]
    return Reply("\n".join([*rows, *lines]))


def _retry(session: ChatSession, argument: str) -> Reply:
    return Reply(answer=session.retry())


def _undo(session: ChatSession, argument: str) -> Reply:
    text = " ".join(session.undo().split())
    excerpt = text if len(text) <= 60 else f"{text[:59]}…"
    return Reply(f'taken back: "{excerpt}"; {counted(len(session.messages), "message")} left')


def _new(session: ChatSession, argument: str) -> Reply:
    session.begin()
    return Reply("a new chat" + (", with the same system message" if session.system else ""))


def _system(session: ChatSession, argument: str) -> Reply:
    if not argument:
        return Reply(session.system or "there is no system message; /system TEXT sets one")
    none = argument == '""'
    session.change_system("" if none else argument)
    return Reply("the system message is removed" if none else "the system message is set")


def _set(session: ChatSession, argument: str) -> Reply:
    name, value = _ASSIGNMENT.match(argument).groups()  # type: ignore[union-attr]
    if not name:
        return Reply("\n".join(_setting(session, each) for each in SETTINGS))
    if name not in SETTINGS:
        raise UserError(f"there is no setting {name!r}; {nearest(name, SETTINGS)}")
    if value == DEFAULT:
        session.options.pop(name, None)
    elif value:
        session.options = checked_settings({**session.options, name: _value(name, value)})
    return Reply(_setting(session, name))


_ASSIGNMENT = re.compile(r"([^\s=]*)[\s=]*(.*)", re.DOTALL)
"""Name and value: ``temperature 0.5`` or ``temperature=0.5``."""
DEFAULT = "default"
"""Value of ``/set`` that returns to the setting of the model's folder."""


def _value(name: str, text: str) -> Any:
    """Parse the value of a setting: a number, for a list one or several, and for biases ID=BIAS."""
    if name == "stop":
        return [text.replace("\\n", "\n")]
    if name == "stop_token_ids":
        return [scalar(each) for each in text.replace(",", " ").split()]
    if name == "logit_bias":
        pairs = [each.replace(":", "=").partition("=") for each in text.replace(",", " ").split()]
        return {index: scalar(bias) for index, _, bias in pairs}
    return scalar(text)


def _setting(session: ChatSession, name: str) -> str:
    default = getattr(session.model.defaults, name)
    default = {"max_new_tokens": "the rest of the context", "seed": "random"}.get(name, default)
    value = session.options.get(name, default)
    origin = f"set here; {DEFAULT}: {_shown(default)}" if name in session.options else "of the model's folder"
    return f"{name} = {_shown(value)}  ({origin})"


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "off"
    return str([*cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value)


def _tools(session: ChatSession, argument: str) -> Reply:
    if argument:
        session.change_tools(read_tools(Path(argument)))
    names = ", ".join(tool["function"]["name"] for tool in session.chat.tools)
    return Reply(f"the model may call {names}" if names else "the model may call no tools")


def _image(session: ChatSession, argument: str) -> Reply:
    if argument == '""':
        session.pictures = []
    elif argument:
        session.attach(argument)
    return Reply(f"the next message has {counted(len(session.pictures), 'picture')}")


def _save(session: ChatSession, argument: str) -> Reply:
    if not argument and session.file is None:
        raise UserError("/save needs the name of a file, such as /save chat.jsonl")
    path = output_file("/save", Path(argument)) if argument or session.file is None else session.file.path
    session.save(path)
    return Reply(f"{counted(len(session.messages), 'message')} in {path}, which also gets what follows")


def _load(session: ChatSession, argument: str) -> Reply:
    if not argument:
        raise UserError("/load needs the name of a file, such as /load chat.jsonl")
    chats = session.load(Path(argument))
    which = "" if chats == 1 else f", the last of {chats:,} chats,"
    return Reply(f"{counted(len(session.messages), 'message')} of {argument}{which} are read")


def _quit(session: ChatSession, argument: str) -> Reply:
    return Reply(ends=True)


COMMANDS = {
    "/retry": ChatCommand("", "answer the last message anew", _retry),
    "/undo": ChatCommand("", "take back the last message and its answer", _undo),
    "/new": ChatCommand("", "begin a new chat", _new),
    "/system": ChatCommand("TEXT", 'set the system message; "" removes it, nothing shows it', _system),
    "/set": ChatCommand("NAME VALUE", f"change a setting, such as temperature 0.5; {DEFAULT} resets it", _set),
    "/tools": ChatCommand("FILE", "let the model call the tools of a JSON file", _tools),
    "/image": ChatCommand("FILE", 'add a picture to the next message; "" removes all of its pictures', _image),
    "/save": ChatCommand("FILE", "keep the chat in a file, from now on after each message", _save),
    "/load": ChatCommand("FILE", "go on with the last chat of a file", _load),
    "/help": ChatCommand("", "show this list", _help),
    "/quit": ChatCommand("", "end the chat", _quit),
}
"""Commands within a chat, by name."""
