"""Command ``qkv show``."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from qkv.cli.shared.inputs import text_of_file
from qkv.cli.shared.runs import Json, page_file
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.runs.chats.shown import ShownChats

EXAMPLES = """\
qkv show chat.jsonl --from my-checkpoint
qkv show chat.jsonl --from SmolLM2-135M-Instruct.gguf --row 12 --row 40
qkv show preferences.jsonl --from runs/my --length 1024
qkv show chat.jsonl --from my-checkpoint --learn last --out page.html
qkv show chat.jsonl --from runs/my --chat-template chatml.jinja
"""
LEARN = ("answers", "last", "everything")
_PRINTED = 1
"""Number of rows printed by default; the page shows more."""
_UNUSED = 10
"""Maximum number of unusable rows printed; the page shows more."""


class _PageOptions(NamedTuple):
    """Options on what is written."""

    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="HTML page; default: the name of DATA, with .html.")
    ] = None
    no_page: Annotated[bool, typer.Option("--no-page", help="Print only, and write no page.")] = False
    as_json: Json = False


def more_options() -> dict[str, Any]:
    """Return the option of each column of conversations and preferences, by name."""
    from qkv.cli.shared.columns import role_options
    from qkv.data.records.conversations.read import CONVERSATION_ROLES, PREFERENCE_ROLES

    return role_options((*CONVERSATION_ROLES, *PREFERENCE_ROLES))


_Data = Annotated[
    Path, typer.Argument(metavar="DATA", help="Conversations or preferences: JSONL, JSON, or a table (CSV, TSV).")
]
_Start = Annotated[
    str | None,
    typer.Option("--from", metavar="RUN|FOLDER|FILE.gguf", help="Model whose tokenizer and template are used."),
]
_Row = Annotated[list[int] | None, typer.Option("--row", metavar="N", help="Row to show, counted from 1; repeatable.")]
_Learn = Annotated[str | None, typer.Option(metavar="|".join(LEARN), help="What is learned; default: all answers.")]
_Length = Annotated[
    int | None, typer.Option(metavar="N", help="Maximum tokens of a text; default: the model's context length.")
]
_Template = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Jinja chat template that replaces the model's own.")
]


def show_command(
    data: _Data,
    *,
    start: _Start = None,
    row: _Row = None,
    learn: _Learn = None,
    length: _Length = None,
    chat_template: _Template = None,
    written: _PageOptions,
    **columns: str | None,
) -> None:
    """Show what a model would learn from conversations: every token as context, target or mark of the template, counts,
    lengths, what truncation would cut, unusable rows.

    Only tokenizer, template and sizes of the model are read, not its weights.
    """
    start = _checked(data, start)
    page = None if written.no_page else page_file("--out", written.out or Path(f"{_stem(data)}.html"), data)
    text = None if chat_template is None else _template_in(chat_template)
    from qkv.api.functions import show

    named = {role: column for role, column in columns.items() if column is not None}
    chats = show(data, start, row or (), learn, length, text, **named)
    if page is not None:
        _write(page, chats)
    if written.as_json:
        typer.echo(json.dumps(chats.plain(), ensure_ascii=False))
    else:
        _tell(chats, len(row or ()) or _PRINTED, page)


def _checked(data: Path, start: str | None) -> str:
    """Return ``start``. Raises ``UserError`` if it, the data, or the library of templates is missing."""
    if start is None:
        raise UserError(
            f"--from is missing: the tokens of {data} depend on a model; name a run, a folder or a GGUF file with "
            "--from, whose tokenizer and chat template are used"
        )
    if find_spec("jinja2") is None:
        raise UserError("chat templates need jinja2, which is not installed; pip install 'qkv[serve]'")
    if not data.expanduser().exists():
        raise UserError(f"there is no file {str(data)!r}")
    return start


def _template_in(file: Path) -> str:
    """Read a chat template. Raises ``UserError``, also for a pipe, which might never end."""
    if file.is_fifo():
        raise UserError(f"--chat-template: {str(file)!r} is a pipe; name a regular file")
    return text_of_file(file, "--chat-template")


def _stem(data: Path) -> str:
    return data.name.removesuffix(".gz").partition(".")[0] or "show"


def _write(page: Path, chats: ShownChats) -> None:
    from qkv.runs.storage.files import clear_errors
    from qkv.system.files import write_file

    with clear_errors(str(page)):
        write_file(page, chats.page().encode())


def _tell(chats: ShownChats, count: int, page: Path | None) -> None:
    """Print the first ``count`` rows, the counts, the lengths and the sentences."""
    from qkv.report.table import print_table
    from qkv.report.tokens import print_tokens
    from qkv.runs.chats.shown import count_rows, quantile_rows

    for texts in list(chats.texts.values())[:count]:
        for text in texts:
            print_tokens(text, sys.stdout)
            typer.echo()
    typer.echo(f"{chats.audit.headline}\n")
    print_table("", ["quantity", "number"], count_rows(chats))
    typer.echo()
    print_table("", ["length of a text", "tokens"], quantile_rows(chats.audit))
    if chats.unused:
        typer.echo()
        print_table("", ["row", "cannot be used because"], [list(row) for row in chats.unused[:_UNUSED]])
    typer.echo()
    for sentence in (*chats.audit.warnings, *chats.audit.notes, *chats.notes):
        typer.echo(f"note: {sentence}", err=True)
    if page is not None:
        typer.echo(f"page: {page}")
