"""``qkv serve``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.runs import run_or_published
from qkv.interop.places import is_sentence_folder
from qkv.spec.errors import UserError

KEY = "QKV_API_KEY"
"""Environment variable with the key."""
EXAMPLES = """\
qkv serve runs/my
qkv serve runs/my small=runs/small --port 9000
QKV_API_KEY=secret qkv serve my-checkpoint --host 0.0.0.0
"""


def serve_command(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN [NAME=RUN2 ...]", help="Run folders or published models, with a name if wanted."),
    ],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 for a free one.")] = 8000,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", help=f"Key that clients have to send; also from {KEY}.")
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="Let pages of this origin ask; '*' for all; repeatable.")
    ] = None,
    max_body: Annotated[int, typer.Option(metavar="BYTES", min=1, help="Maximum size of a request.")] = 8 * 2**20,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Maximum tokens of a prompt and its answer; default: the context length."
        ),
    ] = None,
    max_batch: Annotated[int, typer.Option(metavar="N", min=1, help="Texts written at once, per model.")] = 32,
    max_queue: Annotated[int, typer.Option(metavar="N", min=1, help="Texts that wait, per model.")] = 1000,
    memory: Annotated[
        int | None, typer.Option(metavar="BYTES", min=1, help="Budget of decoding states, per model; more waits.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Maximum time of a request; default: none.")
    ] = None,
    patience: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Time to finish at the end; default: as it needs.")
    ] = None,
) -> None:
    """Serve models over HTTP in the form of OpenAI's interface, and a page to try them in a browser."""
    folders = _named(runs)
    _check_installed()
    from qkv.serving.app import LOOPBACK, Access
    from qkv.serving.limits import Limits
    from qkv.serving.listen import open_socket, serve, url_of
    from qkv.serving.model import ServedModel
    from qkv.serving.service import Service

    limits = Limits(max_body, max_tokens, max_batch, max_queue, memory, timeout)
    key = api_key if api_key is not None else os.environ.get(KEY)
    access = Access(key or None, LOOPBACK if host in LOOPBACK else (), tuple(cors or ()))
    with open_socket(host, port) as listener:
        service = Service({name: ServedModel(name, folder, limits) for name, folder in folders.items()}, limits)
        for name, model in service.models.items():
            typer.echo(f"{name}: {', '.join(model.to_dict()['capabilities'])}")
        typer.echo(f"serving at {url_of(listener)} (OpenAI's interface: {url_of(listener)}/v1); Ctrl-C ends")
        serve(service, access, listener, patience)


def _named(runs: list[str]) -> dict[str, Path]:
    """Folders by name; by default the last part of their path. Raises ``UserError`` for a name given twice."""
    found: dict[str, Path] = {}
    for given in runs:
        first, equals, rest = given.partition("=")
        folder = Path(rest if equals and not Path(given).exists() else given).expanduser()
        name = first if equals and not Path(given).exists() else folder.resolve().name
        if not name or name in found:
            said = f"the name {name!r} is given twice" if name else f"{given!r} has no name before '='"
            raise UserError(f"{said}; write NAME=RUN with another name for each")
        found[name] = folder if is_sentence_folder(folder) else run_or_published(folder)
    return found


def _check_installed() -> None:
    """Raise ``UserError`` if the libraries of the server are missing."""
    try:
        import jinja2  # noqa: F401
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(f"serving needs {error.name}, which is not installed; pip install 'qkv[serve]'") from None
