"""Command ``qkv export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.runs import Copy, ModelFolder, output_file, run_or_published
from qkv.interop.files.places import is_sentence_folder
from qkv.runs.export import choose_place

EXAMPLES = """\
qkv export runs/my
qkv export runs/my --out my-model --dtype bf16
qkv export runs/my --format gguf --dtype q8_0
qkv export runs/adapted --format peft
qkv export runs/classifier --format onnx
"""

_Check = Annotated[
    bool | None,
    typer.Option(
        "--check/--no-check",
        help="Open the result with the transformers library, or llama.cpp, and compare logits; "
        "default: for models up to 2 GiB in fp32.",
    ),
]


def export_command(
    run: ModelFolder,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Output folder, a file for gguf; default: beside the run, RUN-FORMAT or RUN.gguf."
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option(metavar="hf|gguf|peft|onnx", help="Output format; gguf: of llama.cpp; peft: only the adapter."),
    ] = "hf",
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="fp32|bf16|fp16", help="Precision of the weights; gguf also q8_0 and q4_0. Default: unchanged."
        ),
    ] = None,
    check: _Check = None,
    copy: Copy = False,
) -> None:
    """Export a trained model in a format that other libraries open: Hugging Face folder, GGUF, adapter, or ONNX."""
    source = run if format == "onnx" and is_sentence_folder(run) else run_or_published(run)
    if format == "gguf" and out is not None:
        output_file("--out", out)
    place = choose_place(source, out, format, dtype, "--")
    from qkv.api.functions import export

    done = export(source, place, format, dtype, check, copy)
    for note in done.notes:
        typer.echo(note, err=True)
    typer.echo(f"{done.place}: {done.summary}")
