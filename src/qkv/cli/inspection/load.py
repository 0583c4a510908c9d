"""Command ``qkv load``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.runs import Copy
from qkv.cli.shared.uses import commands_of

if TYPE_CHECKING:
    from qkv.interop.load import PublishedModel

EXAMPLES = """\
qkv load gpt2
qkv load ./Qwen3-0.6B --dtype bf16
qkv load owner/name --revision v1.0
"""


def load_command(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER|NAME", help="A folder in Hugging Face format, or a published name.")
    ],
    dtype: Annotated[
        str | None, typer.Option(metavar="fp32|bf16|fp16", help="Precision in memory; default: as stored.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="NAME", help="Branch, tag or commit of a published name.")
    ] = None,
    pickles: Annotated[
        bool, typer.Option("--pickles", help="Read pytorch_model.bin (tensors only) if there are no safetensors.")
    ] = False,
    copy: Copy = False,
) -> None:
    """Load a published checkpoint and show its family, sizes, and which tensors and config keys are used or ignored
    and why.
    """
    from qkv.interop.load import load_published
    from qkv.report.table import print_table

    checkpoint = load_published(source, dtype, revision, pickles, copy)
    print_table(str(source), ["property", "value"], _properties(source, checkpoint))
    ignored = [("tensor", *pair) for pair in checkpoint.ignored] + [
        ("config", *pair) for pair in checkpoint.ignored_config
    ]
    if ignored:
        typer.echo()
        print_table("", ["ignored", "name", "reason"], ignored)


def _properties(source: Path, checkpoint: PublishedModel) -> list[tuple[str, Any]]:
    from qkv.report.figures import counted

    spec, tokenizer = checkpoint.spec, checkpoint.tokenizer
    head = spec.head.kind.replace("_", " ")
    rows: list[tuple[str, Any]] = [
        ("folder", checkpoint.folder),
        ("family", f"{checkpoint.family} ({checkpoint.architecture})"),
        ("model", f"{counted(len(spec.layers), 'layer')} of width {spec.width}, a head for {head}"),
        ("parameters", sum(parameter.numel() for parameter in checkpoint.model.parameters())),
        ("adapter", str(checkpoint.adapter) if checkpoint.adapter else None),
        ("precision", str(next(checkpoint.model.parameters()).dtype).removeprefix("torch.")),
        ("quantised tensors", checkpoint.quantization or None),
        ("context length", spec.context_length),
        ("tokenizer", f"{tokenizer.vocab_size:,} ids" if tokenizer else "none"),
        ("classes", ", ".join(checkpoint.labels[:8]) + (" …" if len(checkpoint.labels) > 8 else "") or None),
        ("tensors used", f"{checkpoint.used} of {checkpoint.used + len(checkpoint.ignored)}"),
        *(("commands" if not i else "", command) for i, command in enumerate(commands_of(source, checkpoint))),
    ]
    return [row for row in rows if row[1] is not None]
