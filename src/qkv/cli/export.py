"""``qkv export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.runs import run_or_published
from qkv.spec.errors import UserError, nearest

EXAMPLES = """\
qkv export runs/my
qkv export runs/my --out my-model --dtype bf16
"""

FORMATS = {"hf": "a folder of the Hugging Face form, which the transformers library and serving engines open"}


def export_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a published checkpoint.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write; default: beside the run, '-hf' behind its name.")
    ] = None,
    format: Annotated[str, typer.Option(metavar="hf", help="The form of the folder.")] = "hf",
    dtype: Annotated[str | None, typer.Option(metavar="fp32|bf16|fp16", help="Precision of the weights; default: as they are.")] = None,
) -> None:
    """Write a trained model as a folder that other libraries open: config.json, model.safetensors, tokenizer.json."""
    if format not in FORMATS:
        raise UserError(f"there is no format {format!r}; {nearest(format, FORMATS)}")
    source = run_or_published(run)
    folder = out or source.with_name(f"{source.name}-hf")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; name another folder with --out")
    family = _write(source, folder, dtype)
    typer.echo(f"{folder}: {family}")


def _write(source: Path, folder: Path, dtype: str | None) -> str:
    """The family and architecture that were written."""
    from qkv.interop.load import load_published, precision
    from qkv.interop.save import save_published
    from qkv.training.run import load

    if (source / "spec.yaml").is_file():
        run = load(source)
        if not run.vocabulary.shared:
            raise UserError(f"{source} reads with one tokenizer and writes with another, which no published family does")
        model, tokenizer, labels, family = run.model, run.tokenizer, run.vocabulary.labels, ""
    else:
        found = load_published(source)
        model, tokenizer, labels, family = found.model, found.tokenizer, found.labels, found.family
    written = save_published(model.to(precision(dtype)) if dtype else model, folder, tokenizer, labels, family)
    return f"{written.family.name} ({written.architecture})"
