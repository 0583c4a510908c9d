"""Entry point of ``qkv``: parse the command line, run one command, turn exceptions into one line and an exit code.

0 success · 1 bug in qkv · 2 unusable input · 3 an alarm of ``qkv health`` · 130 interrupted · 141 output pipe closed
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from qkv.parallel.meeting import report_failure
from qkv.spec.extension.imports import VARIABLE, add_to_variable, import_parts, imported_line
from qkv.system.errors import UserError, nearest
from qkv.training.interrupt import Interrupted

ROOMS = {
    "training": {
        "train": "Train a model from a recipe, a text file, or a table of examples.",
        "demo": "Train a small model on Python's documentation; no download needed.",
        "tokenizer": "Train a tokenizer on text files, or show how one splits a text.",
        "swap": "Replace a part of a trained model and measure the effect.",
        "quantize": "Write a trained model with weights in 16, 8 or 4 bits, and measure the effect.",
        "compare": "Compare models over seeds at an equal budget: which one is better, and by how much.",
        "compare-runs": "Compare runs: what differs in their recipes, and their results.",
        "record": "Record the results of finished runs in their recipe file.",
        "recipes": "List the recipes that ship with qkv, with their results; or print one.",
        "accept": "Accept the edited spec or vocabulary of a run.",
    },
    "inference": {
        "generate": "Generate text.",
        "chat": "Chat with a model that has a chat template.",
        "predict": "Predict with a trained model: labels, tags, answers, translations, summaries, numbers.",
        "transcribe": "Transcribe a sound: text, subtitles, times of words.",
        "say": "Speak a text, and write a sound file.",
        "compress": "Compress a sound to codes with a neural codec, or decode them.",
        "ask": "Answer by few-shot prompting: show examples, choose the most probable option.",
        "serve": "Serve models over HTTP with OpenAI's interface.",
        "evaluate": "Evaluate a trained model on held-out data.",
        "embed": "Compute embedding vectors of texts.",
        "search": "Find the texts of a file that are nearest to a query.",
        "rerank": "Order documents by their relevance to a query.",
    },
    "inspection": {
        "health": "Say what is wrong with a run, and how to cure it.",
        "inspect": "Look inside a model on one input: attention, logit lens, heads, words, hidden states.",
        "show": "Show what is learned from conversations: every token as context, target or template, and the counts.",
        "cost": "Estimate parameters, FLOPs, memory and time of a model.",
        "bench": "Measure a model on this machine: tokens per second, first token, memory limit.",
        "why": "Show which implementation of each operation runs here, why, and its speedup.",
        "load": "Load a published checkpoint and show what it contains.",
        "export": "Export a trained model in a format that other libraries open.",
        "fixtures": "Write inputs, inner values and outputs of a model, to test other engines against.",
        "where": "Locate a tensor of a model: spec path, module, file and line.",
        "info": "Show the installation, or a summary of a run or a published folder.",
        "schema": "Print the JSON schema of recipes for editors.",
    },
    "theory": {
        "explain": "Walk through a forward pass: every equation with its own numbers.",
        "particles": "Simulate tokens as particles that attract each other, beside a model's hidden states.",
        "subleq": "Run a program on a looped Transformer whose weights are set by hand.",
    },
}
"""Subpackage of ``qkv.cli`` -> its commands by name, each with a summary for the help.

A command is the function ``<name>_command`` of the module ``qkv.cli.<subpackage>.<name>`` ("_" for "-"), which also
defines ``EXAMPLES`` for its help. The module is imported only when the command is called. Its function
``more_options``, if any, returns options that depend on the registered parts.
"""

COMMANDS = {name: summary for commands in ROOMS.values() for name, summary in commands.items()}
"""Name of each command -> its summary, in the order of the help."""

_IMPORT = "--import"
_PACKAGE = Path(__file__).parents[1]
_LONGEST_WORD = 500
"""Maximum length of a word quoted in full in messages."""
HELP = "Define a Transformer as data, train it, run it and inspect it."
EXAMPLES = """\
qkv train my.txt                      train on your own text
qkv generate runs/my "Once upon"      generate text
qkv train classify --data mine.csv    train a classifier on your own table
qkv predict runs/mine "a new text"    predict a label
qkv recipes                           recipes to train by name
"""


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit code."""
    try:
        with warnings.catch_warnings(), _same_variable():
            warnings.showwarning = _note
            code = _run(list(sys.argv[1:] if args is None else args))
        sys.stdout.flush()
        return code
    except UserError as error:
        return _say(str(error), error.code)
    except Interrupted as stopped:
        return _say(str(stopped), 128 + stopped.number)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except BrokenPipeError:
        # Buffered output has nowhere to go; without this Python complains at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        return _unexpected(error)


@contextlib.contextmanager
def _same_variable() -> Generator[None]:
    """Context manager: restore the environment variable QKV_IMPORT at the end; ``--import`` extends it inside."""
    before = os.environ.get(VARIABLE)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """Replace ``warnings.showwarning``: print warnings of the package as one line, others as Python does."""
    ours = Path(filename).is_relative_to(_PACKAGE)
    text = f"note: {message}\n" if ours else warnings.formatwarning(message, category, filename, lineno, line)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)


def _say(sentence: str, code: int) -> int:
    line = " ".join(word if len(word) <= _LONGEST_WORD else f"{word[:80]}…{word[-20:]}" for word in sentence.split())
    line = report_failure(line)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"qkv: {line}\n" if line else "")
    return code


def _unexpected(error: Exception) -> int:
    """Report an unexpected exception in one line, or with a traceback if QKV_DEBUG is set."""
    if os.environ.get("QKV_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
        return 1
    if (
        isinstance(error, MemoryError)
        or "can't allocate memory" in str(error)
        or type(error).__name__ == "OutOfMemoryError"
    ):
        return _say("out of memory; reduce training.batch_size, model.context_length or model.width", 2)
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return _say(f"{place}{error.strerror[0].lower()}{error.strerror[1:]}", 2)
    text = f"{type(error).__name__}: {error}".strip(": ")
    if line := imported_line(error):
        return _say(f"{line}: {text}; set QKV_DEBUG=1 for the traceback", 2)
    frames = traceback.extract_tb(error.__traceback__)
    our_frames = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    where = f"{Path((our_frames or frames)[-1].filename).name}:{(our_frames or frames)[-1].lineno}"
    return _say(f"this is a bug in qkv, not in your input: {text} ({where}); set QKV_DEBUG=1 for the traceback", 1)


def _run(args: list[str]) -> int:
    command = get_command(_app())
    if any(name.endswith("QKV_COMPLETE") for name in os.environ):
        command.main(args, prog_name="qkv")
    try:
        with command.make_context("qkv", args or ["--help"], obj=list(args)) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        complaint: Callable[[], str] | None = getattr(error, "format_message", None)
        if complaint is None:
            raise
        raise UserError(_usage(error, complaint())) from None
    return 0


def _usage(error: Any, complaint: str) -> str:
    """Convert a usage ``error`` of typer with the message ``complaint`` to a sentence.

    It suggests the nearest option and names the command's help.
    """
    context = getattr(error, "ctx", None)
    command: str = context.command_path if context else "qkv"
    option: str | None = getattr(error, "option_name", None)
    if option and type(error).__name__ == "NoSuchOption":
        if "=" in option or "." in option:
            return f"there is no option {option!r}; overrides are written without dashes, such as training.steps=500"
        parameters: list[Any] = context.command.params if context else []
        names: list[str] = [name for parameter in parameters for name in parameter.opts]
        options = ["--help", *(name for name in names if name.startswith("--"))]
        return f"there is no option {option!r}; {nearest(option, options)}"
    complaint = complaint[0].lower() + complaint[1:].rstrip(".")
    return f"{complaint}; see '{command} --help'"


class _Commands(TyperGroup):
    """Command group that imports a command only when it is called; the overview needs names and summaries only."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the options before the command; ``--import`` may stand anywhere before a ``--``."""
        return super().parse_args(ctx, _imports_first(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Replace the placeholder with the real command. Raises UserError for an unknown name."""
        name = args[0]
        if name in COMMANDS:
            self.commands[name] = _command(name)
        elif not ctx.resilient_parsing:
            raise UserError(_no_command(name))
        return super().resolve_command(ctx, args)


def _imports_first(args: list[str]) -> list[str]:
    """Move each ``--import NAME`` or ``--import=NAME`` before the command. Raises ``UserError`` if it has no name."""
    end = args.index("--") if "--" in args else len(args)
    first, rest = list[str](), list[str]()
    words = iter(args[:end])
    for word in words:
        if word == _IMPORT:
            name = next(words, "")
            if not name or name.startswith("--"):
                raise UserError(f"{_IMPORT} needs a file or a dotted module, such as {_IMPORT} my_mixer.py")
            first += [word, name]
        else:
            (first if word.startswith(f"{_IMPORT}=") else rest).append(word)
    return [*first, *rest, *args[end:]]


def _no_command(name: str) -> str:
    if Path(name).is_file():
        return f"there is no command {name!r}; to train on that file: qkv train {name}"
    if (Path(name) / "spec.yaml").is_file():
        return f"there is no command {name!r}; to generate text with that run: qkv generate {name}"
    return f"there is no command {name!r}; {nearest(name, COMMANDS)}"


def _command(name: str) -> Any:
    plain = name.replace("-", "_")
    room = next(room for room, commands in ROOMS.items() if name in commands)
    module = importlib.import_module(f"qkv.cli.{room}.{plain}")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    from qkv.cli.shared.options import with_options

    more: dict[str, Any] = module.more_options() if hasattr(module, "more_options") else {}
    kind, function = getattr(module, "Command", TyperCommand), with_options(getattr(module, f"{plain}_command"), more)
    alone.command(name, cls=kind, short_help=COMMANDS[name], epilog=_verbatim(module.EXAMPLES))(function)
    return get_command(alone)


def _verbatim(examples: str) -> str:
    """Mark up the text ``examples`` so that typer's help keeps its line breaks."""
    return "\b\nExamples:\n" + textwrap.indent(examples, "  ").replace("\n\n", "\n\n\b\n")


def _app() -> typer.Typer:
    app = typer.Typer(
        cls=_Commands, help=HELP, epilog=_verbatim(EXAMPLES), rich_markup_mode=None, pretty_exceptions_enable=False
    )
    app.callback()(_overview)
    for name, summary in COMMANDS.items():
        app.command(name, short_help=summary)(_overview)
    return app


def _version(value: bool) -> None:
    if value:
        from importlib import metadata

        typer.echo(f"qkv {metadata.version('qkv')}")
        raise typer.Exit


def _import_named(names: list[str] | None) -> list[str] | None:
    """Import the modules that --import names, before the command is built: its options depend on their parts."""
    add_to_variable([import_parts(name) for name in names or []])
    return names


def _overview(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    imports: Annotated[
        list[str] | None,
        typer.Option(
            _IMPORT,
            callback=_import_named,
            metavar="FILE|MODULE",
            help="Import a file or module with parts of your own; repeatable, also allowed after the command.",
        ),
    ] = None,
) -> None:
    """Accept the options that precede the command; their callbacks run while they are parsed."""
