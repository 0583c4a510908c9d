"""Command ``qkv accept``."""

from __future__ import annotations

import typer

from qkv.cli.shared.runs import RunFolder, run_folder

EXAMPLES = """\
qkv accept runs/my
"""


def accept_command(run: RunFolder) -> None:
    """Accept the edited spec or vocabulary of a run.

    Weights record the spec and vocabulary that they were trained with, and commands refuse to load them with others.
    This command records the current spec and vocabulary. If model.safetensors is missing, it uses the weights of the
    newest checkpoint. Training can only be resumed with its original recipe.
    """
    folder = run_folder(run)
    from qkv.runs.storage.load import accept

    parts = accept(folder)
    typer.echo(f"{parts}: accepted" if parts else f"nothing in {run} has changed since its weights were stored")
