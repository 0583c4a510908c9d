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
qkv export runs/adapted --format peft
"""

FORMATS = {
    "hf": "a folder of the Hugging Face form, which the transformers library and serving engines open",
    "peft": "the adapter alone of a run that learned one (training.adapt: lora), in the form of the PEFT library",
}


def export_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a published checkpoint.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write; default: beside the run, the format behind its name.")
    ] = None,
    format: Annotated[str, typer.Option(metavar="hf|peft", help="The form of the folder; peft: of an adapter alone.")] = "hf",
    dtype: Annotated[str | None, typer.Option(metavar="fp32|bf16|fp16", help="Precision of the weights; default: as they are.")] = None,
) -> None:
    """Write a trained model as a folder that other libraries open: config.json, model.safetensors, tokenizer.json."""
    if format not in FORMATS:
        raise UserError(f"there is no format {format!r}; {nearest(format, FORMATS)}")
    source = run_or_published(run)
    folder = out or source.with_name(f"{source.name}-{format}")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; name another folder with --out")
    family = _write_adapter(source, folder, dtype) if format == "peft" else _write(source, folder, dtype)
    typer.echo(f"{folder}: {family}")


def _write_adapter(source: Path, folder: Path, dtype: str | None) -> str:
    """What was written of an adapter."""
    from qkv.interop.load import precision
    from qkv.interop.peft import save_adapter
    from qkv.training.run import load_adapted

    if not (source / "spec.yaml").is_file():
        raise UserError(f"{source} is a published checkpoint, and only a run that learned an adapter has one to write")
    run = load_adapted(source)
    model = run.model.to(precision(dtype)) if dtype else run.model
    found = save_adapter(model, run.recipe.training, folder, run.recipe.start)
    return f"an adapter of rank {found.config['r']} on {', '.join(found.config['target_modules'])}"


def _write(source: Path, folder: Path, dtype: str | None) -> str:
    """The family and architecture that were written."""
    from qkv.interop.load import load_published, precision
    from qkv.interop.remote.save import save_remote
    from qkv.interop.save import covering, save_published
    from qkv.tasks.pairs import marks
    from qkv.training.run import load

    if (source / "spec.yaml").is_file():
        run = load(source)
        if not run.vocabulary.shared:
            raise UserError(f"{source} reads with one tokenizer and writes with another, which no published family does")
        model, tokenizer, labels, family, kept = run.model, run.tokenizer, run.vocabulary.labels, "", None
        begin = marks(run.vocabulary, getattr(run.recipe.task, "begin", ())).begin if model.encoder else ()
    else:
        found = load_published(source)
        model, tokenizer, labels, family, begin = found.model, found.tokenizer, found.labels, found.family, found.begin
        kept = found.kept
    model = model.to(precision(dtype)) if dtype else model
    if covering(model.spec, family) is None:
        try:
            save_remote(model, folder, tokenizer)
        except UserError as error:
            raise UserError(f"no published family that qkv knows is this model, and {error}") from None
        return (
            "no published family is this model, so the folder holds a model file of its own, modeling_qkv.py; "
            "transformers opens it with trust_remote_code=True"
        )
    written = save_published(model, folder, tokenizer, labels, family, begin, kept)
    return f"{written.family.name} ({written.architecture})"
