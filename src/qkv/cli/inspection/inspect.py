"""Command ``qkv inspect``."""

from __future__ import annotations

import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.inputs import text_of_file, text_of_input
from qkv.cli.shared.runs import Copy, ModelFolder, load_run, page_file
from qkv.system.errors import UserError, nearest

if TYPE_CHECKING:
    from qkv.lens.inspection.inspection import Inspection

EXAMPLES = """\
qkv inspect runs/my "The quick brown fox"
qkv inspect my-checkpoint "Paris is the capital of" --out page.html
qkv inspect SmolLM2-135M-Instruct.gguf "Once upon a time" --views attention,lens --out page.html
qkv inspect runs/my "Once upon" --ablate blocks.1.branches.0:3 --out without.html
qkv inspect runs/translator "Ein Hund" --answer "a dog"
qkv inspect runs/images image.png
qkv inspect whisper-base/ clip.wav --views attention --out page.html
qkv inspect runs/my "Once upon" --over book.txt --views neurons --out page.html
qkv inspect runs/forecast --row 0 --out page.html
"""

_Input = Annotated[
    str | None,
    typer.Argument(metavar="[INPUT]", help="Text, or file of an image or a sound; '-' reads standard input."),
]
_Row = Annotated[int | None, typer.Option(metavar="N", min=0, help="Row N of the run's held-out data, from 0.")]
_Part = Annotated[
    list[str] | None, typer.Option("--input", metavar="NAME=VALUE", help="Further input, as pair=TEXT; repeatable.")
]
_Answer = Annotated[str | None, typer.Option(metavar="TEXT", help="Text that a translator writes; default: its own.")]
_Ablate = Annotated[
    list[str] | None, typer.Option(metavar="PATH:HEAD", help="Head to replace by its mean; repeatable.")
]
_Over = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Text over which neurons are read; default: held-out rows.")
]
_Views = Annotated[str | None, typer.Option(metavar="NAME,…", help="Views of the file; default: all.")]
_Out = Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write the page to a file instead of serving it.")]
_Port = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port of the page; 0: a free one.")]
_NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the address and open no browser.")]


def inspect_command(
    run: ModelFolder,
    text: _Input = None,
    *,
    input: _Part = None,
    row: _Row = None,
    answer: _Answer = None,
    ablate: _Ablate = None,
    over: _Over = None,
    views: _Views = None,
    out: _Out = None,
    port: _Port = 0,
    no_browser: _NoBrowser = False,
    copy: Copy = False,
) -> None:
    """Look inside a model on one input: attention, influence of positions, logit lens, parts of a logit, roles of
    heads, importance of positions, hidden states, neurons, the kept checkpoints, and what changes with a word or
    without a head.

    Without --out, the page is served on this machine until Ctrl-C.
    """
    names = _views(views)
    page = None if out is None else page_file("--out", out)
    heads = [_head(text) for text in ablate or ()]
    read = None if over is None else text_of_file(over, "--over")
    loaded = load_run(run, copy)
    from qkv.api.functions import inspect

    text = text_of_input() if text == "-" else text
    inspection = inspect(loaded, text, row=row, answer=answer, ablate=heads, over=read, **_parts(input or []))
    if page is None:
        _serve(inspection, port, no_browser)
        return
    for name in names:
        began = time.perf_counter()
        refused = inspection.view(name).get("refused")
        typer.echo(f"{name}: {refused or f'{time.perf_counter() - began:.1f} s'}", err=True)
    inspection.save(page, names)
    typer.echo(f"page: {page}")


def _views(text: str | None) -> list[str]:
    from qkv.lens.inspection.views import VIEWS

    names = list(VIEWS) if text is None else [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(f"--views: no view given; allowed: {', '.join(VIEWS)}")
    for name in names:
        if name not in VIEWS:
            raise UserError(f"--views: {name!r} given; {nearest(name, VIEWS)}")
    return names


def _head(text: str) -> tuple[str, int]:
    path, _, number = text.rpartition(":")
    if not path or not number.isdecimal():
        raise UserError(f"--ablate: {text!r} given, but a head is written PATH:HEAD, such as blocks.0.branches.0:3")
    return path, int(number)


def _parts(parts: list[str]) -> dict[str, Any]:
    wrong = next((part for part in parts if "=" not in part), None)
    if wrong is not None:
        raise UserError(f"--input: {wrong!r} given, but a further input is written NAME=VALUE")
    return dict(part.split("=", 1) for part in parts)


def _serve(inspection: Inspection, port: int, no_browser: bool) -> None:
    from qkv.lens.inspection.local_server import LocalServer

    try:
        server = LocalServer(inspection, port)
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}; choose another one, or 0 for a free one") from None
    with server:
        typer.echo(f"page: {server.url} (Ctrl-C ends it)")
        if not no_browser:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("ended", err=True)
