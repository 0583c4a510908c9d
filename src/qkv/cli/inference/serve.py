"""Command ``qkv serve``."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from qkv.cli.shared.decoding import SpeculationOptions, speculator_of
from qkv.cli.shared.inputs import text_of_file
from qkv.cli.shared.runs import run_or_published
from qkv.interop.files.places import is_sentence_folder
from qkv.report.figures import size
from qkv.serving.limits import Limits
from qkv.system.errors import UserError
from qkv.tokenizers.gguf.file import SUFFIX

if TYPE_CHECKING:
    from qkv.generation.decode.speculate import Speculator
    from qkv.runs.run import Run
    from qkv.serving.engine.model import ServedModel
    from qkv.serving.engine.service import Service

_NEEDED = ("starlette", "uvicorn", "prometheus_client", "jinja2")
KEY = "QKV_API_KEY"
"""Environment variable with the API key."""
EXAMPLES = """\
qkv serve runs/my
qkv serve runs/my small=runs/small --port 9000
qkv serve runs/large --draft runs/small
qkv serve llava-1.5-7b-hf --pictures photos
qkv serve SmolLM2-135M-Instruct.gguf
qkv serve my-checkpoint --chat-template chatml.jinja
QKV_API_KEY=secret qkv serve my-checkpoint --host 0.0.0.0
"""


_Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN [NAME=RUN2 ...]",
        help="Run folders, published checkpoints or GGUF files; NAME= sets the model's name.",
    ),
]
_Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")]
_Port = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 for a free one.")]
_ApiKey = Annotated[str | None, typer.Option(metavar="KEY", help=f"API key that clients must send; default: {KEY}.")]
_Cors = Annotated[
    list[str] | None, typer.Option(metavar="ORIGIN", help="Allow web pages of this origin (CORS), '*' all; repeatable.")
]
_ChatTemplate = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Jinja chat template that replaces the model's own.")
]
_Patience = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0, help="Time to finish requests at shutdown; default: no limit.")
]


class _LimitOptions(NamedTuple):
    """Options of ``Limits``."""

    max_body: Annotated[int, typer.Option(metavar="BYTES", min=1, help="Maximum size of a request.")] = Limits.body
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Maximum tokens of a prompt and its answer; default: the context length."
        ),
    ] = None
    max_batch: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum texts generated at once, per model.")] = (
        Limits.batch
    )
    max_queue: Annotated[
        int, typer.Option(metavar="N", min=1, help="Maximum texts waiting in the queue, per model.")
    ] = Limits.queue
    memory: Annotated[
        int | None, typer.Option(metavar="BYTES", min=1, help="Memory for KV caches and other states, per model.")
    ] = None
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Maximum time of a request; default: no limit.")
    ] = None
    strict: Annotated[bool, typer.Option("--strict", help="Refuse requests that have parameters without effect.")] = (
        False
    )
    inspect: Annotated[
        bool, typer.Option("--inspect", help="Answer /v1/inspect: values inside the models, and edits of them.")
    ] = False
    pictures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder whose files messages may name as pictures.")
    ] = None

    def limits(self) -> Limits:
        """Return the limits. Raises ``UserError`` if there is no folder of pictures."""
        if self.pictures is not None and not self.pictures.is_dir():
            raise UserError(f"--pictures: there is no folder {str(self.pictures)!r}")
        return Limits(
            self.max_body,
            self.max_tokens,
            self.max_batch,
            self.max_queue,
            self.memory,
            self.timeout,
            strict=self.strict,
            inspect=self.inspect,
            pictures=self.pictures,
        )


def serve_command(
    runs: _Runs,
    host: _Host = "127.0.0.1",
    port: _Port = 8000,
    api_key: _ApiKey = None,
    cors: _Cors = None,
    *,
    limits: _LimitOptions,
    speculation: SpeculationOptions,
    chat_template: _ChatTemplate = None,
    patience: _Patience = None,
) -> None:
    """Serve models over HTTP with OpenAI's interface, and a page to try them in a browser."""
    folders, bounds = _named(runs), limits.limits()
    settings = speculation.settings()
    template = None if chat_template is None else text_of_file(chat_template, "--chat-template")
    _check_installed()
    from qkv.serving.http.app import LOOPBACK, Access
    from qkv.serving.http.listen import open_socket, serve

    key = api_key if api_key is not None else os.environ.get(KEY)
    access = Access(key or None, LOOPBACK if host in LOOPBACK else (), tuple(cors or ()))
    drafting = None if settings is None else partial(speculator_of, settings)
    with open_socket(host, port) as opened:
        service = _service(folders, bounds, drafting, template)
        for name, model in service.models.items():
            typer.echo(f"{name}: {', '.join(model.to_dict()['capabilities'])}{_chats(model)}")
        serve(service, access, opened, patience, typer.echo)


def _chats(model: ServedModel) -> str:
    """Return a note on the chats of a model: what its answers have besides text, or why there are none; "" for none."""
    if model.chat_problem is not None:
        return f"; no chat, since {model.chat_problem}"
    answers = model.to_dict()["answers"]
    named = [name if name == "reasoning" else f"tools ({form})" for name, form in answers.items() if form]
    return f"; chats with {' and '.join(named)}" if named else ""


def _service(
    folders: dict[str, Path], limits: Limits, speculation: Callable[[Run], Speculator] | None, template: str | None
) -> Service:
    """Load the models, let them share equal weights, and print the memory that sharing saves."""
    from qkv.serving.engine.model import ServedModel, share
    from qkv.serving.engine.service import Service

    several = len(folders) > 1
    models = {
        name: ServedModel(name, folder, limits, speculation, several, template) for name, folder in folders.items()
    }
    saved = share(models.values()) if several else 0
    service = Service(models, limits)
    if saved:
        shared, apart = size(service.weight_bytes), size(service.weight_bytes + saved)
        typer.echo(f"weights: {shared} (shared between models; {apart} without sharing)")
    return service


def _named(runs: list[str]) -> dict[str, Path]:
    """Parse ``RUN`` and ``NAME=RUN`` to folders by name; default name: the last part of the path.

    Raises ``UserError`` for a duplicate or empty name.
    """
    folders: dict[str, Path] = {}
    for text in runs:
        first, equals, rest = text.partition("=")
        folder = Path(rest if equals and not Path(text).exists() else text).expanduser()
        name = first if equals and not Path(text).exists() else folder.resolve().name.removesuffix(SUFFIX)
        if not name or name in folders:
            complaint = f"the name {name!r} is given twice" if name else f"{text!r} has no name before '='"
            raise UserError(f"{complaint}; write NAME=RUN with another name for each")
        folders[name] = folder if is_sentence_folder(folder) else run_or_published(folder)
    return folders


def _check_installed() -> None:
    """Raise ``UserError`` if the libraries of the server are missing."""
    missing = next((name for name in _NEEDED if find_spec(name) is None), None)
    if missing is not None:
        raise UserError(f"serving needs {missing}, which is not installed; pip install 'qkv[serve]'")
