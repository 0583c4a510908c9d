"""Command ``qkv demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """\
qkv demo
qkv demo --out runs/longer training.steps=5000 training.minutes=10
"""


def demo_command(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH=VALUE]...", help="Changes, such as training.steps=500.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The run folder.")] = Path("runs/demo"),
) -> None:
    """Train a small model for at most three minutes on the documentation that comes with CPython, and generate text."""
    from importlib import resources

    from qkv.cli.training.train import train_and_tell
    from qkv.generation.text import generate_text
    from qkv.spec.files.yaml_io import read_recipe

    with resources.as_file(resources.files("qkv.cli") / "demo.yaml") as path:
        recipe = read_recipe(path, overrides or [])
    run = train_and_tell(recipe, "python-docs", out=out)
    typer.echo(f"\nGenerated text:\n\n{generate_text(run.model, run.tokenizer, '', recipe.sample).strip()}")
