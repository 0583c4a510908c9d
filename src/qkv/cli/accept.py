"""``qkv accept``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.runs import run_folder

EXAMPLES = """\
qkv accept runs/my
"""


def accept_command(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, made by 'qkv train'.")]) -> None:
    """Take a run as it is now, after its spec or vocabulary was edited.

    Weights are stored with the spec and the vocabulary that they were trained with, and no command loads them with others. This stores
    them anew with those that are there; where model.safetensors is missing, it takes the weights of the newest checkpoint. Training
    goes on only with the recipe that it began with.
    """
    folder = run_folder(run)
    from qkv.training.run import accept

    found = accept(folder)
    typer.echo(f"{found}: accepted" if found else f"nothing in {run} was changed since its weights were stored")
